// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/optim/make_shard.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace orthant::optim {

at::ScalarType master_type(at::ScalarType precision) { return precision == at::kBFloat16 ? at::kFloat : precision; }

ShardState make_shard(const shard::FlatUnit& unit, const ShardSpec& spec) {
  const auto master_options = at::TensorOptions(master_type(spec.precision));
  const auto own = [&](const at::Tensor& given, at::ScalarType type) {
    return given.defined() ? given : at::empty({spec.count}, at::TensorOptions(type));
  };
  ShardState shard;
  shard.unit = unit.id;
  shard.begin = spec.begin;
  shard.trains = unit.trains();
  shard.lr_scale = unit.lr_scale;
  shard.weight_decay = unit.weight_decay;
  shard.decays = unit.decays || unit.weight_decay.has_value();
  shard.counted = unit.counted;
  shard.weight = own(spec.weight, spec.precision);
  const bool apart = shard.trains && spec.precision != master_type(spec.precision);
  shard.master = apart ? at::empty({spec.count}, master_options) : shard.weight;
  if (!shard.trains) return shard;
  shard.grad = spec.grad.defined() ? spec.grad : at::zeros({spec.count}, master_options);
  const auto moments = spec.moments == at::kBFloat16 ? master_options.dtype(at::kBFloat16) : master_options;
  shard.exp_avg = at::zeros({spec.count}, moments);
  shard.exp_avg_sq = at::zeros({spec.count}, moments);
  return shard;
}

void initialise(ShardState& shard, const shard::FlatUnit& unit, const InitialWeights& initial) {
  const auto wide = master_type(shard.master.scalar_type());
  if (shard.master.scalar_type() == wide) {
    initial(unit, shard.begin, shard.master);
  } else {  // bf16 that never trains
    const auto values = at::empty({shard.master.numel()}, at::TensorOptions(wide));
    initial(unit, shard.begin, values);
    shard.master.copy_(values);
  }
  if (!shard.weight.is_same(shard.master)) shard.weight.copy_(shard.master);
}

}  // namespace orthant::optim
