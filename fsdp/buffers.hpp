// SPDX-License-Identifier: Apache-2.0
// Which units share memory for gathered weights, or for unreduced gradients: a pure function of the table. Everything
// that fsdp guarantees about order follows from it by way of claims.
#pragma once

#include <string>
#include <vector>

#include <orthant/core/shard/parameter_table.hpp>
#include <orthant/core/train/stage_layout.hpp>

namespace orthant::fsdp {

/// One buffer, in which `units` take turns.
struct BufferPlan {
  std::string name;
  std::vector<UnitId> units;
  std::int64_t numel = 0;  ///< of the largest of them, padded
};

/// Residency::chunk  every unit alone.
/// Residency::layer  block number i of this rank in buffer i mod `alternating`; every other unit alone.
std::vector<BufferPlan> plan_buffers(const shard::ParameterTable& table, train::Residency residency, int alternating,
                                     int degree);

/// The parts of a padded unit that no parameter covers: alignment gaps and padding.
std::vector<shard::Range> gaps(const shard::FlatUnit& unit, std::int64_t padded_numel);

}  // namespace orthant::fsdp
