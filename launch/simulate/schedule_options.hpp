// SPDX-License-Identifier: Apache-2.0
// How commands name a schedule and what its operations cost, and the plan that is meant: one from the catalog, or a
// file. Needs no LibTorch.
#pragma once

#include <string>
#include <vector>

#include <orthant/pipeline/generate/request.hpp>

namespace CLI {
class App;
}

namespace orthant::launch {

struct ScheduleOptions {
  std::string schedule;  ///< a name of the catalog, or "file:PATH"
  int stages = 0;        ///< the pipeline's degree; 0: not given
  int microbatches = 0;
  int chunks = 0;
  std::string costs;        ///< "F,I,W" or "F,I,W,C"; "": 1,1,1,0
  std::string stage_costs;  ///< "F,I,W;F,I,W;…"
  double latency = 0;
  double bandwidth = 0;  ///< 0: without limit
  double message_bytes = 0;
  double overlapped = 0;
  std::string memory;  ///< "F,I,W"; "": 1,-1,0
  double memory_limit = 0;
  int slots = 0;  ///< 0: as many as it needs
};

/// --schedule, --stages, --microbatches, --chunks.
void add_shape_options(CLI::App& command, ScheduleOptions& options);
/// --costs, --stage-costs, --latency, --bandwidth, --message-bytes, --overlapped, --memory, --memory-limit, --slots.
void add_cost_options(CLI::App& command, ScheduleOptions& options);

/// Throws  ConfigError, naming the option, what was found and what is wanted.
pipeline::Costs costs_of(const ScheduleOptions& options);
pipeline::MemoryModel memory_of(const ScheduleOptions& options);

struct SchedulePlan {
  pipeline::Schedule compute;
  pipeline::Schedule lowered;
  pipeline::Costs costs;
  pipeline::MemoryModel memory;
  std::vector<std::string> notes;  ///< of a file: what was not taken over
};

/// Makes or reads the schedule, and lowers it unless it is lowered already.
/// Throws  ConfigError also for a file that the validator rejects, with its first problem, for options that contradict
///         the file, for too few --slots, and when a rank holds more than --memory-limit.
SchedulePlan plan_schedule(const ScheduleOptions& options);

/// Lowers with `slots`, or as many as it needs if 0. Throws  ConfigError where lower() says that it cannot be done.
pipeline::Schedule lower_or_explain(const pipeline::Schedule& compute, int slots);

}  // namespace orthant::launch
