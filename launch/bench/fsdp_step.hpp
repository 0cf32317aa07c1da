// SPDX-License-Identifier: Apache-2.0
// One step of sharded data parallelism as it ran on one rank, out of a scheduler's records: how long, how much of it
// was computation, and what the compute stream waited for in the rest.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <orthant/core/stream/scheduler.hpp>

namespace orthant::launch {

enum class FsdpTask : std::uint8_t { forward, backward, gather, reduce, copy, step, other };

/// By the task's name: "F …", "B …", "AG …", "RS …", "OUT …" and "IN …" (copies), "STEP".
FsdpTask task_of(std::string_view name);

struct FsdpBox {
  FsdpTask task;
  int layer = -1;  ///< of "F layers.3" and "AG layers.3.0"
  stream::StreamId stream;
  double begin_ms = 0, end_ms = 0;  ///< from the step's begin
};

/// From the end of the optimizer step before it to the end of its own.
struct FsdpStep {
  double step_ms = 0;
  double compute_ms = 0;  ///< what forwards and backwards took
  /// What the compute stream waited for. A wait is divided among the chain of tasks that led to its end: each has the
  /// time in which the next one of the chain waited for it. They add up to exposed_ms().
  double gather_ms = 0, reduce_ms = 0, copy_ms = 0;
  double other_ms = 0;  ///< the scheduler's own time and the optimizer's task, which does nothing
  std::vector<FsdpBox> boxes;

  double exposed_ms() const { return step_ms - compute_ms; }
  double exposed_share() const { return exposed_ms() / step_ms; }
};

/// records  of whole steps on one compute stream, sorted by id, from the scheduler's beginning.
std::vector<FsdpStep> steps_of(std::span<const stream::TaskRecord> records);

/// The step of median duration.
const FsdpStep& median(const std::vector<FsdpStep>& steps);

}  // namespace orthant::launch
