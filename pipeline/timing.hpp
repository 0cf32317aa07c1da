// SPDX-License-Identifier: Apache-2.0
// What a schedule costs when every stage is alike: for tests, plans and pictures. A compute-only schedule is timed over
// links that hold any number of messages; a lowered one as a rank would run it that executes its list in line with
// unbuffered sends, which is the slowest legal way. The executor, whose messages have streams of their own, lies
// between the two.
#pragma once

#include <orthant/pipeline/schedule.hpp>

namespace orthant::pipeline {

/// Any one unit of time.
struct Costs {
  double forward = 1;
  double input = 1;
  double weight = 1;
  double message = 0;
};

/// Of a computation; B costs input + weight. All else costs nothing.
constexpr double cost_of(OpKind kind, const Costs& costs) {
  switch (kind) {
    case OpKind::forward:
      return costs.forward;
    case OpKind::backward:
      return costs.input + costs.weight;
    case OpKind::backward_input:
      return costs.input;
    case OpKind::backward_weight:
      return costs.weight;
    default:
      return 0;
  }
}

struct Timing {
  double makespan = 0;                      ///< last end, counted from the start of the first operation
  double bubble = 0;                        ///< makespan minus the work of the busiest rank
  std::vector<std::vector<double>> begins;  ///< of each operation, as in Schedule::ranks
};

/// Throws  InternalError when the ranks wait for each other for ever.
Timing time_schedule(const Schedule& schedule, const Costs& costs);

/// A picture of the schedule in time: one line a rank, one column a unit of time, ". " where it idles. Whole-number
/// costs.
std::string draw(const Schedule& schedule, const Costs& costs);

}  // namespace orthant::pipeline
