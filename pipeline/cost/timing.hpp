// SPDX-License-Identifier: Apache-2.0
// When each operation of a compute-only schedule runs if every rank takes its list in order and starts an operation as
// soon as its input is there: messages take Costs::message, links hold any number of them, and no computation waits for
// a send. Fast: schedule searches call it thousands of times. simulate.hpp times a lowered plan, with its slots.
//
// Two clocks: the makespan is what a step with a synchronous optimizer takes; the span, the longest time that one rank
// is between its own first begin and last end, is what remains when steps follow each other without a barrier.
#pragma once

#include <orthant/pipeline/cost/costs.hpp>

namespace orthant::pipeline {

struct Interval {
  double begin = 0;
  double end = 0;
};

struct Timing {
  double makespan = 0;                     ///< last end minus first begin, over all ranks
  double span = 0;                         ///< the largest of the ranks' own last end minus own first begin
  double ideal = 0;                        ///< work of the busiest rank
  std::vector<double> idle;                ///< per rank: makespan minus its work
  std::vector<double> peak;                ///< per rank: most memory of activations at any time
  std::vector<std::vector<Interval>> ops;  ///< of each operation, as in Schedule::ranks; both of a pair have the pair's

  double bubble() const { return makespan - ideal; }
  double bubble_span() const { return span - ideal; }
};

/// The figures of a timeline, simulated or measured.
/// compute  compute operations only; ops  as Timing::ops.
Timing timing_of(const Schedule& compute, std::vector<std::vector<Interval>> ops, const MemoryModel& memory = {});

/// schedule  compute operations only.
/// Throws  InternalError, naming the operations at which the ranks stand, when they wait for each other for ever.
Timing time_schedule(const Schedule& schedule, const Costs& costs, const MemoryModel& memory = {});

}  // namespace orthant::pipeline
