// SPDX-License-Identifier: Apache-2.0
// A finished run in words and in summary.json.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include <orthant/launch/run_config.hpp>
#include <orthant/launch/run_folder.hpp>
#include <orthant/launch/trainer.hpp>

namespace orthant::launch {

/// Mesh, schedule, sharding and precision.
std::string describe(const RunConfig& run);

/// What belongs to summary.json beside the training itself.
struct SummaryParts {
  nlohmann::ordered_json memory;
  nlohmann::ordered_json goodput;
  nlohmann::ordered_json checkpoints;
};

/// Writes summary.json and prints what a person wants to know.
void write_summary(const RunConfig& run, const TrainSummary& summary, const SummaryParts& parts, RunFolder& folder);

}  // namespace orthant::launch
