// SPDX-License-Identifier: Apache-2.0
// LayerPass: one micro-batch's way through one layer. Travels in the autograd context, not in thread-locals: backward
// may run on another thread. Holds what the split of B into I (input gradient) and W (weight gradient) defers, and the
// scope in which nested collectives are posted.
#pragma once

#include <deque>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <orthant/core/base/id.hpp>
#include <orthant/core/base/phase.hpp>
#include <orthant/core/stream/task.hpp>

namespace orthant::model {

/// What the random numbers of a micro-batch depend on, apart from the place in the model.
struct DropoutSource {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t first_sample = 0;  ///< of the micro-batch, among the step's samples
  std::int64_t first_row = 0;     ///< of this rank's rows, among the sequence's

  /// Of one place in a layer, 0 or 1.
  std::uint64_t key(LayerId layer, int place) const;
};

struct LayerPass {
  stream::TaskScope* scope = nullptr;                      ///< of the task that runs now
  int posted = 0;                                          ///< nested collectives posted by it so far
  bool split = false;                                      ///< weight gradients wait for the W task
  bool training = true;                                    ///< false: no graph is kept
  std::deque<std::function<void(LayerPass&)>> deferred;    ///< weight gradients, in backward order
  std::vector<std::function<void(LayerPass&)>> recompute;  ///< what forward dropped and backward needs
  std::optional<DropoutSource> dropout = {};               ///< in training, where the model has dropout
  double weight_us = 0;                                    ///< spent on weight gradients that were not deferred

  /// Posts the next declared collective and returns its index for wait().
  int post(std::function<stream::Work()> start) {
    scope->post(std::move(start));
    return posted++;
  }
  void wait(int index) { scope->wait(index); }
  /// Runs `gradient` now (without a graph), or keeps it for W.
  void weight_gradient(std::function<void(LayerPass&)> gradient);
  /// Makes again what forward dropped: before backward.
  void make_again();
  /// Runs what weight_gradient() kept: the body of W.
  void run_deferred();
};

/// The outside view of a layer's task: nested collectives and segments, in the order in which the body will post and
/// wait.
class Declaration {
 public:
  void compute(double cost_us);
  /// Returns the index to wait for.
  int post(std::string name, stream::StreamId stream, double cost_us);
  void wait(int index);

  std::vector<stream::NestedCollective> nested;
  std::vector<stream::Segment> segments;
};

}  // namespace orthant::model
