// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/step/shard_copies.hpp>

#include <ATen/ops/empty_like.h>

namespace orthant::step {

void ShardCopies::save(const optim::ShardState& shard) {
  Copy& copy = copies_[shard.unit];
  const auto into = [](at::Tensor& kept, const at::Tensor& now) {
    if (!kept.defined()) kept = at::empty_like(now);
    kept.copy_(now);
  };
  into(copy.master, shard.master);
  into(copy.exp_avg, shard.exp_avg);
  into(copy.exp_avg_sq, shard.exp_avg_sq);
  copy.updates = shard.updates;
}

void ShardCopies::restore(optim::ShardState& shard) const {
  const Copy& copy = copies_.at(shard.unit);
  shard.master.copy_(copy.master);
  shard.exp_avg.copy_(copy.exp_avg);
  shard.exp_avg_sq.copy_(copy.exp_avg_sq);
  shard.updates = copy.updates;
  if (!shard.weight.is_same(shard.master)) shard.weight.copy_(shard.master);
}

std::int64_t ShardCopies::bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [unit, copy] : copies_) {
    bytes += static_cast<std::int64_t>(copy.master.nbytes() + copy.exp_avg.nbytes() + copy.exp_avg_sq.nbytes());
  }
  return bytes;
}

}  // namespace orthant::step
