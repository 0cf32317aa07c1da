// SPDX-License-Identifier: Apache-2.0
// VirtualClock: the scheduler that runs nothing and keeps time instead. The same submissions that drive the CPU and
// CUDA back ends give the time line that the streams and claims allow: what the simulator costs, and what overlap tests
// measure without a timer. The host is taken to submit in no time.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include <orthant/core/stream/scheduler.hpp>
#include <orthant/core/stream/task_graph.hpp>

namespace orthant::stream {

class VirtualClock final : public Scheduler {
 public:
  /// Duration in microseconds of one segment: compute, or post (the collective task.nested[segment.nested]). A task
  /// without segments, so each task on a request stream too, has one compute segment of task.cost_us. Default:
  /// segment.cost_us.
  using Cost = std::function<double(const Task& task, const Segment& segment)>;

  explicit VirtualClock(Cost cost_us = {});

  StreamId add_stream(std::string name, StreamKind kind) override;
  BufferId add_buffer(std::string name) override { return graph_.add_buffer(std::move(name)); }
  /// Places the task on the time line at once; its body or start is destroyed unused.
  TaskId submit(Task task) override;
  /// Nothing to wait for; throws InternalError for an id that was not submitted.
  void wait(TaskId id) override;
  void drain() override {}

  /// When the last task ends.
  double makespan_us() const;
  /// Every task with its place in time, sorted by id; valid until the next submit().
  std::span<const TaskRecord> records() const { return records_; }

 private:
  Cost cost_us_;
  TaskGraph graph_;
  std::vector<double> free_at_us_;  ///< per stream
  std::vector<TaskRecord> records_;
};

}  // namespace orthant::stream
