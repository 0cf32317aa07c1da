// SPDX-License-Identifier: Apache-2.0
// orthant schedule compare: bubble and memory of every schedule for the same model, in one table. A schedule with v
// stages a rank cuts the same layers v times finer, so its costs and activations are a v-th each.
#pragma once

#include <string>
#include <vector>

#include <orthant/pipeline/cost/costs.hpp>

namespace CLI {
class App;
}

namespace orthant::launch {

struct ScheduleFigures {
  std::string schedule;
  int chunks = 1;  ///< stages a rank
  int slots = 1;
  double makespan = 0;
  double bubble_rate = 0;       ///< of the makespan
  double bubble_span_rate = 0;  ///< of the span: steps that follow each other without a barrier
  double peak_activations = 0;  ///< on the fullest rank; 1: all of a rank's layers for one micro-batch
};

struct ScheduleComparison {
  std::vector<ScheduleFigures> schedules;
  struct Refusal {
    std::string schedule;
    std::string why;
  };
  std::vector<Refusal> refused;  ///< by their rules
};

/// costs  of all layers of a rank; uniform.
ScheduleComparison compare_schedules(int ranks, int microbatches, const pipeline::Costs& costs);

/// Adds `compare`. When it was given and has run, `code` is its exit code.
void add_schedule_comparison(CLI::App& app, int& code);

}  // namespace orthant::launch
