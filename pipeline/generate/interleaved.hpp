// SPDX-License-Identifier: Apache-2.0
// Interleaved schedules: several stages a rank on a loop. Micro-batches go in rounds of about p; within a round a rank
// runs all of them on one chunk, then all of them on its next, so that its warm-up is one round a chunk and a few more.
// Sources: Narayanan et al. 2021 (interleaved 1F1B); Qi et al. 2024 (with B split).
#pragma once

#include <string>

#include <orthant/pipeline/generate/request.hpp>

namespace orthant::pipeline {

/// 1F1B over chunks: 1/v of its bubble for v stages a rank.
Schedule interleaved(const ScheduleRequest& request);
/// One hop less of warm-up for each rank from the end, and W as many places behind I as the rank's number: in the
/// bubble.
Schedule interleaved_zb(const ScheduleRequest& request);

/// Both want rounds of equal length: max(1, m / p) of them.
std::string interleaved_rule(const ScheduleRequest& request);

}  // namespace orthant::pipeline
