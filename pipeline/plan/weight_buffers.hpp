// SPDX-License-Identifier: Apache-2.0
// Which units of a rank share a buffer, for gathered weights or for unreduced gradients: the same rule as the sharding
// engine's, so that what expand() plans fits into what was allocated.
#pragma once

#include <map>
#include <span>

#include <orthant/core/train/stage_layout.hpp>

namespace orthant::pipeline {

/// Each unit's buffer. Under Residency::layer block number i of the rank has buffer i mod 2; every other unit, and
/// under Residency::chunk every unit, has one of its own. stages  of one rank, ascending.
std::map<UnitId, int> assign_buffers(std::span<const train::StageLayout> stages, train::Residency residency);

/// Whether the unit takes turns with others in its buffer.
constexpr bool is_shared(int buffer) { return buffer < 2; }

}  // namespace orthant::pipeline
