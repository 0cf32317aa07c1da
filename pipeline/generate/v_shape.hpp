// SPDX-License-Identifier: Apache-2.0
// Two stages a rank, down and back again (v_placement), so that every rank holds about as many activations as the
// others. Sources: Qi et al. 2024 (ZB-V); Qi et al. 2024 (Pipeline Parallelism with Controllable Memory: V-Half,
// V-Min).
#pragma once

#include <string>

#include <orthant/pipeline/generate/request.hpp>

namespace orthant::pipeline {

/// No bubble between steps where F, I and W take equally long, with the activations of 1F1B: at most 2 p of a chunk a
/// rank.
Schedule zb_v(const ScheduleRequest& request);
/// Half the activations: at most 2 floor((p + 2) / 2).
Schedule v_half(const ScheduleRequest& request);
/// A third of them: at most 2 floor((p + 4) / 3).
Schedule v_min(const ScheduleRequest& request);
// All three, with MemoryModel{1, -1, 0}:
// - give the published order if F = I = W in every stage and messages take nothing;
// - else search for a shorter makespan and span within the same peaks, and are never longer than the published order;
// - let no more W's wait than activations may be held;
// - keep within memory_limit too, where one is given, and throw ConfigError if not even one micro-batch does.

/// The memory model and the limit.
std::string v_rule(const ScheduleRequest& request);

}  // namespace orthant::pipeline
