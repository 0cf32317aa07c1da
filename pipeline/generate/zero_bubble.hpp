// SPDX-License-Identifier: Apache-2.0
// Hand-written zero-bubble schedules on a loop, one stage a rank: B is split, and W fills what would be idle. Source:
// Qi et al. 2024 (Zero Bubble Pipeline Parallelism).
#pragma once

#include <orthant/pipeline/generate/request.hpp>

namespace orthant::pipeline {

/// 1F1B with B split: rank i runs W i micro-batches behind I, where 1F1B would idle in the cool-down. Same peak of
/// activations.
Schedule zb_h1(const ScheduleRequest& request);
/// Twice the warm-up, 2 (p - 1 - i) forwards, and W 2 i micro-batches behind I: no rank idles between its first
/// operation and its last if F, I and W take equally long, for twice the activations.
Schedule zb_h2(const ScheduleRequest& request);

}  // namespace orthant::pipeline
