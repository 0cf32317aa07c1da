// SPDX-License-Identifier: Apache-2.0
// Which schedule a run takes: the one that it names, a file's, or ("auto") the one with the least predicted step time
// among those that fit the memory limit, with the reason.
#pragma once

#include <string>
#include <vector>

#include <orthant/core/step/llama_program.hpp>
#include <orthant/launch/run_config.hpp>
#include <orthant/pipeline/schedule/schedule.hpp>

namespace orthant::launch {

struct ChosenSchedule {
  pipeline::Schedule schedule;          ///< compute operations only, or lowered (from a file with messages)
  std::vector<step::StageSpan> stages;  ///< layers of every stage of one copy
  std::string reason;                   ///< "auto": a table of the candidates; what a file's reader had to note; or ""
  double predicted_us = 0;              ///< step time of the compute operations; 0 without a profile
};

/// Throws  ConfigError with the rule that the config breaks.
ChosenSchedule choose_schedule(const RunConfig& run);

}  // namespace orthant::launch
