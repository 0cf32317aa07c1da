// SPDX-License-Identifier: Apache-2.0
// What the engine allocates, before it does: the table of ZeRO stages as a pure function of the units. Source:
// Rajbhandari et al. 2020 (ZeRO), section 3; buffers as in YaFSDP.
#pragma once

#include <orthant/core/memory/state_bytes.hpp>
#include <orthant/core/shard/parameter_table.hpp>
#include <orthant/fsdp/engine.hpp>

namespace orthant::fsdp {

/// degree  of sharding. Exactly what an Engine with these options allocates on a rank of such a group; all its ranks
/// allocate the same.
memory::StateBytes state_bytes(const shard::ParameterTable& table, const Options& options, int degree);

}  // namespace orthant::fsdp
