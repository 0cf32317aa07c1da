// SPDX-License-Identifier: Apache-2.0
// How dp and fsdp make the slices that they own: memory for a given gradient slice, and initial weights from outside.
#pragma once

#include <functional>

#include <orthant/core/optim/shard_state.hpp>
#include <orthant/core/shard/parameter_table.hpp>

namespace orthant::optim {

/// Fills elements [begin, begin + n) of a flat unit: master is [n].
using InitialWeights = std::function<void(const shard::FlatUnit& unit, std::int64_t begin, at::Tensor master)>;

/// precision  of the weights. Where it is bf16 they are a tensor of their own beside an fp32 master.
/// grad       [n] fp32, or fp64 for fp64: the slice's gradient, whose memory the caller chose.
/// Master and weights are uninitialised, moments zero.
ShardState make_shard(const shard::FlatUnit& unit, std::int64_t begin, at::ScalarType precision,
                      const at::Tensor& grad);

/// Master weights from `initial`, then the weights rounded from them.
void initialise(ShardState& shard, const shard::FlatUnit& unit, const InitialWeights& initial);

/// The type of master weights and gradients beside weights of `precision`.
at::ScalarType master_type(at::ScalarType precision);

}  // namespace orthant::optim
