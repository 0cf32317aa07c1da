// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism on emulated devices: what the real sharded layers declare, so what their bodies are held to, is
// played with products that sleep and collectives that take a given time, through the CPU scheduler and real messages.
// What a pass takes beyond its products is exposed communication.
#pragma once

#include <array>
#include <string>
#include <vector>

#include <orthant/core/comm/fabric.hpp>

namespace orthant::launch {

enum class TpMode : std::uint8_t {
  backward,             ///< the collective of an input's gradient runs while the weight gradient is computed
  backward_no_overlap,  ///< every collective is waited for as soon as it is posted
  backward_kept,        ///< with the gathered rows kept from forward
  forward,              ///< rows are gathered, then multiplied
  forward_pieces,       ///< gathered in pieces, one of which is multiplied while the next ones travel
};
inline constexpr std::array kTpModes{TpMode::backward_no_overlap, TpMode::backward, TpMode::backward_kept,
                                     TpMode::forward, TpMode::forward_pieces};
std::string name_of(TpMode mode);

struct TpBenchOptions {
  int layers = 8;            ///< pairs of a column- and a row-parallel layer
  double product_ms = 6;     ///< of a layer's product, or of one of the two of its backward
  double collective_ms = 4;  ///< of all rows of a sequence
  int pieces = 4;            ///< forward_pieces
  int steps = 5;             ///< measured, after one that is not
};

enum class TpBoxKind : std::uint8_t { product, gather, sum };

struct TpBox {
  TpBoxKind kind;
  double begin_ms = 0, end_ms = 0;  ///< from the pass's begin
};

/// One pass over all layers.
struct TpPass {
  double ms = 0;
  double compute_ms = 0;
  std::vector<TpBox> boxes;
  double exposed_ms() const { return ms - compute_ms; }
};

struct TpRun {
  TpMode mode;
  std::vector<TpPass> passes;       ///< as measured on this rank
  double predicted_exposed_ms = 0;  ///< by the virtual clock, from the same submissions

  /// The pass of median duration.
  const TpPass& median() const;
};

/// Collective over the ranks of `fabric`, two at least.
TpRun run_tp(TpMode mode, const TpBenchOptions& options, comm::Fabric& fabric);

}  // namespace orthant::launch
