// SPDX-License-Identifier: Apache-2.0
// The seam through which the optimizer reaches what a rank owns of the parameters. dp (stage 0) and fsdp (stages 1 to
// 3) implement it beside ParamLifecycle and GradSync; apart from them because it holds tensors. Who includes it depends
// on core/optim.
#pragma once

#include <vector>

#include <orthant/core/base/id.hpp>
#include <orthant/core/optim/shard_state.hpp>
#include <orthant/core/stream/task.hpp>

namespace orthant::train {

/// The slices that this rank's optimizer steps.
class ShardStore {
 public:
  virtual ~ShardStore() = default;
  /// In unit order; stable for the store's life.
  virtual std::vector<optim::ShardState>& shards() = 0;
  /// The unit's reduced gradient slice as it now stands: what norm, tie and optimizer tasks claim.
  virtual stream::Claim gradient(UnitId) const = 0;
  /// The unit's weights as the memory of its slice now holds them: what a task that replaces them again reads.
  virtual stream::Claim slice(UnitId) const = 0;
  /// Advances the unit to the next step: the claim that the optimizer task writes (the slice's new weights).
  virtual stream::Claim next_weights(UnitId) = 0;
};

}  // namespace orthant::train
