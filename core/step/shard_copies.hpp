// SPDX-License-Identifier: Apache-2.0
// Copies of masters and moments from before an optimizer step, for an exact way back: 12 bytes a sharded fp32
// parameter. (Undoing AdamW by algebra is not exact.)
#pragma once

#include <unordered_map>

#include <orthant/core/optim/shard_state.hpp>

namespace orthant::step {

class ShardCopies {
 public:
  /// Allocates at a shard's first call.
  void save(const optim::ShardState& shard);
  /// Master, moments and weights as they were at the last save().
  void restore(optim::ShardState& shard) const;
  std::int64_t bytes() const;

 private:
  struct Copy {
    at::Tensor master, exp_avg, exp_avg_sq;
    std::int64_t updates = 0;
  };
  std::unordered_map<UnitId, Copy> copies_;
};

}  // namespace orthant::step
