// SPDX-License-Identifier: Apache-2.0
// What must hold in a plan of sharded or replicated data parallelism, said without looking at claims: pairs of tasks of
// which the second may begin only when the first has ended. For sharded weights these are the four conditions of
// YaFSDP, and the shards'.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include <orthant/core/stream/scheduler.hpp>
#include <orthant/tests/harness/plan/task_log.hpp>

namespace orthant::tests {

struct Condition {
  int before = 0;  ///< task
  int after = 0;
  int reads =
      0;  ///< buffers that the second task must claim to read as the first left them; 0: any chain of claims will do
  std::string why;
};

struct PlanRules {
  /// Units that share a buffer have the same slot.
  std::function<std::string(const std::string& unit)> slot = [](const std::string& unit) { return unit; };
  /// Units of an all-reduce, by the task's name; sharded plans have none.
  std::function<std::vector<std::string>(const std::string& task)> bucket = {};
};

/// Reads the tasks' names only: F, B (unit and "norms"), AG, RS, AR, STEP, INIT.
std::vector<Condition> conditions(const std::vector<LoggedTask>& tasks, const PlanRules& rules);

/// The first condition that claims do not guarantee, or "".
std::string first_violation(const std::vector<LoggedTask>& tasks, const PlanRules& rules);

/// The first condition that a time line breaks, or "".
std::string first_overlap(std::span<const stream::TaskRecord> records, const std::vector<Condition>& conditions);

}  // namespace orthant::tests
