// SPDX-License-Identifier: Apache-2.0
// What the engine allocates, before it does, as a pure function of the units.
#pragma once

#include <orthant/core/memory/state_bytes.hpp>
#include <orthant/core/shard/parameter_table.hpp>
#include <orthant/dp/engine.hpp>

namespace orthant::dp {

/// Exactly what an Engine with these options allocates; every rank allocates the same.
memory::StateBytes state_bytes(const shard::ParameterTable& table, const Options& options);

}  // namespace orthant::dp
