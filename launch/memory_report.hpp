// SPDX-License-Identifier: Apache-2.0
// The memory plan in words and files: the table that is printed before a run, the error of one that does not fit, and
// predicted beside measured at its end.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <orthant/launch/memory_plan.hpp>

namespace orthant::launch {

/// What "auto" chose, in words; empty without it.
std::string describe_checkpoints(const RunConfig& run, const PipelinePlan& plan);

/// A line for each kind of memory and a column for each pipeline rank: its largest tensor-parallel rank.
std::string memory_table(const MemoryPlan& memory, const MemoryLimit& limit);
/// Throws  ConfigError with the table, the largest line of the rank that does not fit, and what would help.
void require_fit(const MemoryPlan& memory, const MemoryLimit& limit);

/// What one rank has measured.
struct MeasuredMemory {
  std::int64_t in_tensors = 0;      ///< peak
  std::int64_t resident = 0;        ///< peak of the process
  std::int64_t resident_empty = 0;  ///< that peak before the model was made
};

/// Of this process, so far.
std::int64_t peak_resident_bytes();
/// In rank order, on every rank. Collective over `control`.
std::vector<MeasuredMemory> gather_measured(const MeasuredMemory& mine, comm::Collectives& control,
                                            std::chrono::milliseconds timeout);

/// plan.json: lines of every rank.
nlohmann::ordered_json memory_json(const RunConfig& run, const PipelinePlan& plan, const MemoryPlan& memory,
                                   const MemoryLimit& limit);
/// Part of summary.json: predicted beside measured, per rank. measured  in rank order.
nlohmann::ordered_json measured_json(const RunConfig& run, const MemoryPlan& memory,
                                     const std::vector<MeasuredMemory>& measured);
/// One line a pipeline rank: the rank whose measured peak is largest.
std::string describe_measured(const RunConfig& run, const MemoryPlan& memory,
                              const std::vector<MeasuredMemory>& measured);

}  // namespace orthant::launch
