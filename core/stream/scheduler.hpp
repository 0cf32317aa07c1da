// SPDX-License-Identifier: Apache-2.0
// The stream scheduler: tasks in, per stream in submission order, across streams as their claims demand. Back ends of
// this one interface: CPU streams (cpu_scheduler), the virtual clock (virtual_clock), CUDA streams (the cuda module).
#pragma once

#include <string>
#include <vector>

#include <orthant/core/stream/task.hpp>

namespace orthant::stream {

enum class StreamKind : std::uint8_t {
  compute,  ///< tasks have a body; a thread (CPU) or a device stream runs them
  request,  ///< tasks have a start(); a queue of asynchronous operations, one in flight
};

/// A collective that a task's body posted, as it ran.
struct NestedRecord {
  std::string name;
  StreamId stream;
  double begin_us = 0;
  double end_us = 0;
};

/// A task as it stood in the plan and as it ran: for tests, traces and the simulator.
struct TaskRecord {
  TaskId id;
  std::string name;
  StreamId stream;
  std::vector<TaskId> waits_for = {};  ///< dependencies from claims and the predecessor on its stream
  double begin_us = 0;
  double end_us = 0;
  std::vector<NestedRecord> nested = {};  ///< as Task::nested
};

class Scheduler {
 public:
  virtual ~Scheduler() = default;

  virtual StreamId add_stream(std::string name, StreamKind kind) = 0;
  virtual BufferId add_buffer(std::string name) = 0;

  /// Enqueues; never blocks on other tasks. Throws InternalError for claims that contradict the submission order (see
  /// HazardTracker), and rethrows the failure of an earlier task.
  virtual TaskId submit(Task task) = 0;

  /// Blocks until the task has run. Rethrows the first failure of any task. Throws CommError, naming each stream's
  /// unfinished head task and what it waits for, when nothing at all finished for the scheduler's deadline.
  virtual void wait(TaskId) = 0;
  /// Waits for everything that was submitted.
  virtual void drain() = 0;
};

}  // namespace orthant::stream
