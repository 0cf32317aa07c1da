// SPDX-License-Identifier: Apache-2.0
// How dp and fsdp make the slices that they own: memory for a given gradient slice, and initial weights from outside.
#pragma once

#include <functional>

#include <orthant/core/optim/shard_state.hpp>
#include <orthant/core/shard/parameter_table.hpp>

namespace orthant::optim {

/// Fills elements [begin, begin + n) of a flat unit: master is [n].
using InitialWeights = std::function<void(const shard::FlatUnit& unit, std::int64_t begin, at::Tensor master)>;

struct ShardSpec {
  std::int64_t begin = 0;  ///< first element in the unit
  std::int64_t count = 0;
  at::ScalarType precision = at::kFloat;  ///< of the weights. Where it is bf16 they are apart from an fp32 master.
  at::ScalarType moments = at::kFloat;    ///< bf16, or any other type for the master's
  at::Tensor weight = {};                 ///< [count] in `precision`; undefined: memory of its own
  at::Tensor grad = {};                   ///< [count] in master_type(); undefined: memory of its own
};

/// Master and weights are uninitialised, gradient and moments zero. A unit that never trains gets weights alone.
ShardState make_shard(const shard::FlatUnit& unit, const ShardSpec& spec);

/// Master weights from `initial`, then the weights rounded from them.
void initialise(ShardState& shard, const shard::FlatUnit& unit, const InitialWeights& initial);

/// The type of master weights and gradients beside weights of `precision`.
at::ScalarType master_type(at::ScalarType precision);

}  // namespace orthant::optim
