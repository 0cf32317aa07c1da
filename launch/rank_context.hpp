// SPDX-License-Identifier: Apache-2.0
// What a rank is, made once in launch and passed down: nothing in Orthant is global, so that eight ranks can be threads
// of one process. Destroyed in reverse: scheduler (its threads), then the fabric. Whoever fails aborts the fabric
// first.
#pragma once

#include <chrono>
#include <functional>

#include <orthant/core/comm/fabric.hpp>
#include <orthant/core/step/votes.hpp>
#include <orthant/core/stream/scheduler.hpp>
#include <orthant/core/trace/tracer.hpp>

namespace orthant::launch {

struct RankContext {
  comm::Fabric& fabric;
  stream::Scheduler& scheduler;
  trace::Tracer& tracer;
  stream::StreamId compute;                                           ///< the one compute stream of `scheduler`
  std::chrono::milliseconds timeout{600'000};                         ///< of waits outside steps
  std::function<step::Votes()> votes = [] { return step::Votes{}; };  ///< asked once a step
};

}  // namespace orthant::launch
