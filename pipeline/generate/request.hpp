// SPDX-License-Identifier: Apache-2.0
// What a generator is asked for.
#pragma once

#include <string>

#include <orthant/pipeline/cost/costs.hpp>

namespace orthant::pipeline {

struct ScheduleRequest {
  std::string name = {};
  int ranks = 1;  ///< pipeline degree
  int microbatches = 1;
  int chunks = 0;  ///< stages a rank; 0: what the schedule wants (catalog.hpp)
  // The generators that search look at the rest; the others ignore it.
  Costs costs = {};         ///< per stage
  MemoryModel memory = {};  ///< per stage and micro-batch
  double memory_limit = 0;  ///< most activation memory of a rank, in units of `memory`; 0: the schedule's own limit
};

}  // namespace orthant::pipeline
