// SPDX-License-Identifier: Apache-2.0
// One training run as parity compares it: initial weights, gradients of step 1 before clipping, losses, norms and final
// weights, all gathered by global name, on any mesh, with ranks as threads.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <orthant/core/comm/fabric.hpp>
#include <orthant/launch/run_config.hpp>

namespace orthant::tests {

using Tensors = std::map<std::string, at::Tensor>;

struct Trajectory {
  Tensors initial;
  Tensors gradients;  ///< of step 1: of the mean loss, before clipping
  Tensors final;
  Tensors loaded;   ///< moments at the beginning, where they were asked for
  Tensors moments;  ///< first and second, after all steps
  std::vector<double> losses;
  std::vector<double> norms;
};

/// What may be done to a run.
struct Treatment {
  std::int64_t leave_out_step = -1;  ///< 0-based: this step is not submitted at all
  bool wants_moments = false;
  bool checks_replicas = false;  ///< after each step
  /// Targets that do not count. sample: global counter.
  std::function<bool(std::int64_t sample, std::int64_t at)> ignored = {};
  /// Goes on from the newest checkpoint in this folder, and leaves one there at the end; empty: neither.
  std::filesystem::path checkpoints = {};
  std::int64_t until = -1;  ///< steps done at the end; -1: run.train.steps
};

/// Trains run.train.steps steps on the ranks of `fabric`. Collective; every rank gets the whole.
/// Tokens are a pure function of (step, sample, position).
Trajectory train_on(comm::Fabric& fabric, const launch::RunConfig& run, const Treatment& treatment = {});

/// The same with run.mesh.world() threads.
Trajectory run_trajectory(const launch::RunConfig& run, const Treatment& treatment = {});

/// |a - b| / |b| in fp64; 0 when both are zero.
double relative_difference(const at::Tensor& a, const at::Tensor& b);

/// The token at position `at` of sample `sample` (global counter): skewed, so that there is something to learn.
std::int64_t synthetic_token(std::int64_t sample, std::int64_t at, std::int64_t vocab);

}  // namespace orthant::tests
