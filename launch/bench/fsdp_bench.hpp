// SPDX-License-Identifier: Apache-2.0
// Sharded data parallelism on emulated devices: training steps over equal layers through the real fsdp::Engine, CPU
// scheduler and messages, where a layer's computation sleeps and a collective takes its given time, and the same under
// the schedules of other engines (fsdp/baselines). What a step takes beyond its computations is exposed communication.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <orthant/core/comm/fabric.hpp>
#include <orthant/launch/bench/fsdp_step.hpp>

namespace orthant::launch {

enum class FsdpMode : std::uint8_t {
  overlap,     ///< fsdp::Engine as it is
  no_overlap,  ///< fsdp::Engine, every task after the one submitted before it
  per_tensor,  ///< each tensor gathered, copied to a bucket and reduced by itself
  copy_in,     ///< whole layers, with a copy after each gather and one before each reduction
};
inline constexpr std::array kFsdpModes{FsdpMode::overlap, FsdpMode::no_overlap, FsdpMode::per_tensor,
                                       FsdpMode::copy_in};
std::string name_of(FsdpMode mode);

enum class FsdpStreams : std::uint8_t {
  by_mode,   ///< as what the mode stands for has it: separate for fsdp::Engine, shared for the baselines
  separate,  ///< gathers and reductions each on their own
  shared,    ///< all on one, in the order of their submission
};

struct FsdpBenchOptions {
  int layers = 16;
  double forward_ms = 10, backward_ms = 20;  ///< of one layer
  double gather_ms = 8, reduce_ms = 8;       ///< of one whole layer, latency included
  FsdpStreams streams = FsdpStreams::by_mode;
  int tensors = 7;        ///< per_tensor: in a layer, of one size
  double latency_ms = 1;  ///< per_tensor: part of a collective's time that does not shrink with its size
  double copy_ms = 4;     ///< per_tensor, copy_in: one copy of a whole layer's weights or gradients
  int steps = 5;          ///< measured, after two that are not
};

struct FsdpRun {
  FsdpMode mode;
  std::vector<std::string> streams;  ///< "compute", then "gather" and "reduce", or "communication"
  std::vector<FsdpStep> steps;       ///< as measured on this rank, without warm-up
  FsdpStep predicted;                ///< by the virtual clock, from the same submissions
};

/// Throws  ConfigError, naming the option, where numbers contradict each other.
void check(FsdpMode mode, const FsdpBenchOptions& options);

/// Collective over the ranks of `fabric`.
FsdpRun run_fsdp(FsdpMode mode, const FsdpBenchOptions& options, comm::Fabric& fabric);

}  // namespace orthant::launch
