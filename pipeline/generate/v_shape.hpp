// SPDX-License-Identifier: Apache-2.0
// Two stages a rank, down and back again (v_placement), so that every rank holds about as many activations as the
// others. Sources: Qi et al. 2024 (ZB-V); Qi et al. 2024 (Pipeline Parallelism with Controllable Memory: V-Half,
// V-Min).
#pragma once

#include <string>

#include <orthant/pipeline/generate/request.hpp>

namespace orthant::pipeline {

/// No bubble between steps where F, I and W take equally long, with the activations of 1F1B: at most 2 p of a stage a
/// rank.
Schedule zb_v(const ScheduleRequest& request);
/// Half the activations: at most 2 floor((p + 2) / 2).
Schedule v_half(const ScheduleRequest& request);
/// A third of them: at most 2 floor((p + 4) / 3).
Schedule v_min(const ScheduleRequest& request);
// All three, with activations counted as in MemoryModel{1, -1, 0}:
// - give the published order if F = I = W in all stages and messages take nothing;
// - else search for the shortest makespan, then span, within the same peaks, and are never longer than the published
// one;
// - let no more W's wait on a rank than it may hold activations;
// - keep within memory_limit too, where one is given.
// Whether they are longer than 1F1B with both stages of a rank in one depends on how many micro-batches the peak
// admits. Of random cases (p 2 to 8, m 1 to 3 p, costs 5 to 40, messages up to half the smallest) zb_v was longer in 0
// of 1800; v_half in 2 of 300 (by up to 6 %), in 1 of 500 with W >= (F + I) / 5; v_min in 35 of 300 (by up to 26 %), in
// 4 of 700 with W >= 0.6 (F + I). The peaks are what the names promise, so they are not raised then. Throw  ConfigError
// if memory_limit does not admit one micro-batch at a time.

/// The memory model and the limit.
std::string v_rule(const ScheduleRequest& request);

}  // namespace orthant::pipeline
