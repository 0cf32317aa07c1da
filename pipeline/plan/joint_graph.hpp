// SPDX-License-Identifier: Apache-2.0
// What all ranks would submit, as one graph: tasks on streams, their waits, and operations that several ranks must do
// together (a collective's members, a SEND with its RECV). Answers whether every rank asks for the same operations in
// the same order, and whether they can all end whatever the timing. Works on plans written by hand in tests and on the
// records of schedulers (core/stream TaskRecord).
#pragma once

#include <string>
#include <vector>

namespace orthant::pipeline {

/// One operation on a stream of one rank, in submission order.
struct PlannedTask {
  std::string name;
  std::string stream;               ///< tasks of one stream of a rank run one after another
  std::vector<int> waits_for = {};  ///< indices of tasks of this rank that must have ended
  /// Not "": the communicator or channel that the operation is on: the k-th operation of each member rank is one event,
  /// which begins when all have begun it and ends for all together. A SEND and its RECV bear one name.
  std::string together = {};
  /// Of a nested collective: index of the task whose body posts it (it begins after that task has begun, and that task
  /// ends after it). -1: none.
  int nested_in = -1;
};

/// tasks  per rank. Members of a communicator are the ranks that have a task on it.
/// Returns what is wrong, in words: members of a communicator that ask for different operations (by name) or a
/// different number of them, with both ranks; two operations of one communicator whose order on a rank the plan leaves
/// to the timing, as they are on different streams; a cycle, with the tasks on it. Empty: nothing.
std::vector<std::string> check_joint_graph(const std::vector<std::vector<PlannedTask>>& tasks);

}  // namespace orthant::pipeline
