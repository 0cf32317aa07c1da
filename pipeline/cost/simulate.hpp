// SPDX-License-Identifier: Apache-2.0
// Simulates a step on the virtual clock of the stream scheduler: the plan as ranks would submit it, with a compute
// stream a rank, a stream a channel, and receive slots as buffers. What `orthant simulate` prints and draws, and what
// the measured step of a run is compared with.
#pragma once

#include <vector>

#include <orthant/pipeline/cost/timing.hpp>

namespace orthant::pipeline {

/// A message in time, from when both ends had posted it.
struct MessageInterval {
  Op send;
  int source = 0;
  int destination = 0;
  Interval at;
};

struct Simulation {
  Timing timing;  ///< of the compute operations: Timing::ops as in compute_only(lowered).ranks
  std::vector<MessageInterval> messages;
  std::vector<double> exposed_per_rank;  ///< time that a rank idles while it waits for a message on its way
  double exposed_communication = 0;      ///< over all ranks
};

/// lowered  with its messages and slots (lower.hpp). A message takes Costs::message from the later of: its producer has
///          ended; its slot is free, since the reader of the message `slots` before it has begun; the channel's last
///          one is through.
/// Throws  InternalError, naming the operations, for what validate() rejects: no free slot at a RECV, ends of a channel
///         that disagree on the order, ranks that wait for each other for ever, a reader before its writer.
Simulation simulate(const Schedule& lowered, const Costs& costs, const MemoryModel& memory = {});

}  // namespace orthant::pipeline
