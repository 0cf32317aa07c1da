// SPDX-License-Identifier: Apache-2.0
// From one rank's lowered schedule to layer tasks: a pure function, shared by executor, simulator and memory plan.
// Gathers and reductions follow from buffers: each block unit has one of two shared buffers under Residency::layer,
// every other unit one of its own. UNSHARD stands right after its buffer's last reader and before its first, so the
// prefetch distance is the number of buffers; REDUCE stands right after the last contribution to the unit's gradient.
// The norm units' reduction belongs to the tail.
#pragma once

#include <span>
#include <vector>

#include <orthant/core/train/stage_layout.hpp>
#include <orthant/pipeline/layer_task.hpp>

namespace orthant::pipeline {

/// F goes through the layers in order; B, I and W in reverse.
/// Residency::chunk  one UNSHARD and one REDUCE a step for every unit.
/// Residency::layer  alternating units: UNSHARD before every use unless their buffer still holds them (as at the turn
/// from F to B),
///                   REDUCE after each micro-batch's weight gradient. Other units as in chunk.
std::vector<LayerTask> expand(std::span<const Op> ops, const train::StageLayout& layout, train::Residency residency);

}  // namespace orthant::pipeline
