// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/optim/make_shard.hpp>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

namespace orthant::optim {

at::ScalarType master_type(at::ScalarType precision) { return precision == at::kBFloat16 ? at::kFloat : precision; }

ShardState make_shard(const shard::FlatUnit& unit, std::int64_t begin, at::ScalarType precision,
                      const at::Tensor& grad) {
  ShardState shard;
  shard.unit = unit.id;
  shard.begin = begin;
  shard.master = at::empty_like(grad);
  shard.weight = precision == grad.scalar_type() ? shard.master : at::empty_like(grad, grad.options().dtype(precision));
  shard.grad = grad;
  shard.exp_avg = at::zeros_like(grad);
  shard.exp_avg_sq = at::zeros_like(grad);
  shard.decays = unit.decays;
  shard.counted = unit.counted;
  return shard;
}

void initialise(ShardState& shard, const shard::FlatUnit& unit, const InitialWeights& initial) {
  initial(unit, shard.begin, shard.master);
  if (!shard.weight.is_same(shard.master)) shard.weight.copy_(shard.master);
}

}  // namespace orthant::optim
