// SPDX-License-Identifier: Apache-2.0
// Zero bubble from measured costs under a memory limit, one stage a rank. Source of the problem: Qi et al. 2024 (Zero
// Bubble Pipeline Parallelism), whose heuristic its ZB-1p and ZB-2p come from; the search here is another one.
#pragma once

#include <string>

#include <orthant/pipeline/generate/request.hpp>

namespace orthant::pipeline {

/// The order with the shortest span (timing.hpp; of equal ones the shortest makespan) that a search finds: a greedy
/// scheduler with many warm-ups, then local search. It looks at costs, memory and memory_limit; the limit is of each
/// rank, and where none is given what one micro-batch takes times the number of ranks (ZB-1p; twice that is ZB-2p).
/// Never longer than zb_h1 or zb_h2 where these keep within the limit, nor with a larger limit than with a smaller one.
/// (So that this holds, the limit is rounded down: to half a micro-batch, over more than 8 ranks to p/16
/// micro-batches.) Throws  ConfigError if not even one micro-batch at a time keeps within the limit.
Schedule zb_search(const ScheduleRequest& request);

/// The memory model and the limit.
std::string zb_search_rule(const ScheduleRequest& request);

}  // namespace orthant::pipeline
