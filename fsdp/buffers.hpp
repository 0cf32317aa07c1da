// SPDX-License-Identifier: Apache-2.0
// Which unit's gathered weights and unreduced gradients lie in which buffer: a pure function of the table. Everything
// that fsdp guarantees about order follows from it by way of claims.
#pragma once

#include <string>
#include <vector>

#include <orthant/core/shard/parameter_table.hpp>
#include <orthant/core/train/stage_layout.hpp>

namespace orthant::fsdp {

/// One weight buffer and one gradient buffer of the same size; `units` take turns in them.
struct BufferPlan {
  std::string name;
  std::vector<UnitId> units;
};

/// Residency::chunk  every unit alone.
/// Residency::layer  block number i of this rank in buffer i mod `alternating`; every other unit alone.
/// Throws  InternalError when blocks that would share a buffer differ in layout: one's gaps would hold another's data.
std::vector<BufferPlan> plan_buffers(const shard::ParameterTable& table, train::Residency residency, int alternating);

/// The parts of a padded unit that no parameter covers: alignment gaps and padding.
std::vector<shard::Range> gaps(const shard::FlatUnit& unit, std::int64_t padded_numel);

}  // namespace orthant::fsdp
