// SPDX-License-Identifier: Apache-2.0
// Every schedule that one can train with, by name: its rule, its placement, its generator.
#pragma once

#include <span>
#include <string_view>

#include <orthant/pipeline/generate/request.hpp>

namespace orthant::pipeline {

/// Names of the training schedules, for messages and help.
std::span<const std::string_view> schedule_names();

/// One line about a schedule, for `orthant schedule list`.
std::string_view summary_of(std::string_view name);

/// Stages a rank that the schedule has when none are asked for; 0 for a name that is not known.
int default_chunks(std::string_view name);
/// Stages a rank that are worth a try where one may choose.
std::vector<int> possible_chunks(std::string_view name);

/// The rule that the request breaks, with the numbers found and allowed: "" if none. Names are looked up here too.
std::string broken_rule(const ScheduleRequest& request);

/// Throws  ConfigError with broken_rule().
Schedule make_schedule(const ScheduleRequest& request);

}  // namespace orthant::pipeline
