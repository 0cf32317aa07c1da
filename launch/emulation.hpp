// SPDX-License-Identifier: Apache-2.0
// Emulated devices: the real executor, scheduler and transport, but a computation sleeps for its given time, and a link
// takes its given time (core/comm/paced_fabric.hpp). So a laptop measures how the engine itself schedules eight
// devices. Nothing here asks the simulator: a computation starts when its stream gets to it.
#pragma once

#include <functional>
#include <vector>

#include <orthant/core/comm/fabric.hpp>
#include <orthant/core/comm/paced_fabric.hpp>
#include <orthant/pipeline/cost/timing.hpp>

namespace orthant::launch {

struct EmulationOptions {
  pipeline::Costs costs_ms;  ///< per stage and micro-batch, in ms; `message` is not used
  comm::Link link;           ///< between any two ranks
  std::int64_t message_bytes = 4096;
  int steps = 5;               ///< measured, after one that is not
  bool late_receives = false;  ///< post each receive only when the computation before its reader has ended
  std::function<void()> on_step = [] {};
};

/// One step as it ran: of each rank, its compute operations in order, in ms from the first begin.
struct MeasuredStep {
  std::vector<std::vector<pipeline::Interval>> ops;
  double makespan_ms = 0;
};

struct Emulation {
  std::vector<MeasuredStep> steps;
  std::vector<int> peak_activations;  ///< per rank
};

/// Runs the schedule. Collective over the ranks of `fabric`: as many as the schedule has.
/// lowered  as lower() makes it.
/// Returns  on rank 0; empty elsewhere.
Emulation emulate(const pipeline::Schedule& lowered, const EmulationOptions& options, comm::Fabric& fabric);

/// The step of median makespan.
const MeasuredStep& median(const std::vector<MeasuredStep>& steps);

/// How late sleepers wake up while eight of them sleep side by side, in ms: the 99th percentile. Above 1 the machine is
/// too busy to measure on.
double wake_up_noise_ms();

}  // namespace orthant::launch
