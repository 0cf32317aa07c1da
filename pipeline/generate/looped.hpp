// SPDX-License-Identifier: Apache-2.0
// Schedules on a loop that run a stage's micro-batches one after the other and whose backward is whole (B). Sources:
// Huang et al. 2019 (GPipe); Narayanan et al. 2019 (1F1B); Lamy-Poirier 2023 (breadth-first).
#pragma once

#include <orthant/pipeline/generate/request.hpp>

namespace orthant::pipeline {

/// All forwards, then all backwards in micro-batch order (so that sums come in the same order as in the others).
Schedule gpipe(const ScheduleRequest& request);
/// Rank i warms up with p - 1 - i forwards, then alternates, so that it holds at most p - i activations.
Schedule one_f_one_b(const ScheduleRequest& request);
/// GPipe with several stages a rank: the forwards chunk by chunk, then the backwards chunk by chunk, last chunk first.
/// A rank needs the weights of each chunk in two stretches only.
Schedule breadth_first(const ScheduleRequest& request);

}  // namespace orthant::pipeline
