// SPDX-License-Identifier: Apache-2.0
// Initial weights as a pure function of (seed, global name, global index): the same bits on every mesh, and in fp32 and
// fp64 runs.
#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <orthant/core/shard/parameter_table.hpp>

namespace orthant::model {

/// Identifies a parameter's random stream (xxHash64 of its global name).
std::uint64_t stream_of(std::string_view name);

/// Standard normal number `index` of a stream, by Box-Muller in fp64: numbers 2k and 2k + 1 share a Philox counter.
double standard_normal(std::uint64_t seed, std::uint64_t stream, std::int64_t index);

struct InitOptions {
  std::uint64_t seed = 1;
  double std = 0.02;
};

/// Elements [begin, begin + slice.numel()) of a flat unit.
struct UnitSlice {
  const shard::FlatUnit& unit;
  std::int64_t begin = 0;
  at::Tensor values;  ///< [n] fp32 or fp64
};

/// Fills the slice; alignment gaps and padding become zero. Values are rounded to fp32 first, whatever the slice's
/// type.
void init_unit(const shard::ParameterTable& table, const InitOptions& options, UnitSlice slice);

}  // namespace orthant::model
