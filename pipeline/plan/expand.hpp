// SPDX-License-Identifier: Apache-2.0
// From one rank's lowered schedule to layer tasks: a pure function, shared by executor, simulator and memory plan.
// Gathers and reductions follow from buffers: each block unit has one of two shared buffers under Residency::layer,
// every other unit one of its own. UNSHARD stands right after its buffer's last reader, so the prefetch distance is the
// number of buffers; REDUCE stands right after the last contribution to the unit's gradient. The norm units' reduction
// belongs to the tail.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <orthant/core/train/stage_layout.hpp>
#include <orthant/pipeline/plan/layer_task.hpp>

namespace orthant::pipeline {

struct ResidencyPolicy {
  /// weights    chunk: one UNSHARD (without a window) a step for every unit. layer: alternating units: UNSHARD before
  ///            every use unless their buffer still holds them (as at the turn from F to B); others as in chunk,
  ///            without a window.
  /// gradients  chunk: one REDUCE a step for every unit. layer: alternating units: REDUCE after each micro-batch's
  ///            weight gradient.
  train::Residencies residency = {};
  /// chunk: how many stages of a rank may be gathered at once. Before each operation that reads weights (not W) the
  /// next `window` different stages stay or are gathered, others are freed; the two of a pair are gathered at once,
  /// whatever the window. 0: all, from the step's begin to their last use (reshard_after_forward off).
  int window = 0;
};

/// F goes through a stage's layers in order; B, I and W in reverse.
/// stages  those of this rank, ascending; a unit that two of them use (a tied weight at the turn of a V) is gathered
///         while either is.
/// Throws  InternalError for an operation of another stage.
std::vector<LayerTask> expand(std::span<const Op> ops, std::span<const train::StageLayout> stages,
                              const ResidencyPolicy& policy);

/// How often units are gathered: UNSHARDs among the tasks.
int count_gathers(std::span<const LayerTask> tasks);

/// What is wrong with layer tasks as a plan for these stages: a reader without its UNSHARD before it, an UNSHARD while
/// another unit that shares the buffer is still to be read (too early) or of weights that are there, a unit's REDUCE
/// before its last contribution or none after it. Each in words; empty: nothing.
std::vector<std::string> check_layer_tasks(std::span<const LayerTask> tasks, std::span<const train::StageLayout> stages,
                                           const ResidencyPolicy& policy);

}  // namespace orthant::pipeline
