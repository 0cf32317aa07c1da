// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/stream/virtual_clock.hpp>

#include <algorithm>
#include <utility>

#include <orthant/core/base/error.hpp>

namespace orthant::stream {

VirtualClock::VirtualClock(Cost cost_us)
    : cost_us_(cost_us ? std::move(cost_us) : [](const Task&, const Segment& segment) { return segment.cost_us; }) {}

StreamId VirtualClock::add_stream(std::string name, StreamKind kind) {
  free_at_us_.push_back(0);
  return graph_.add_stream(std::move(name), kind);
}

// Everything that a task waits for was submitted before it and so has its place already. That holds for nested
// collectives too: what stands before them in their streams belongs to earlier tasks, or to this one.
TaskId VirtualClock::submit(Task task) {
  TaskRecord record = graph_.admit(task);
  double now = free_at_us_[task.stream.value];
  for (const TaskId id : record.waits_for) now = std::max(now, records_[id.value].end_us);
  record.begin_us = now;
  if (task.segments.empty()) task.segments.push_back({.kind = Segment::Kind::compute, .cost_us = task.cost_us});
  for (const Segment& segment : task.segments) {
    if (segment.kind == Segment::Kind::compute) {
      now += cost_us_(task, segment);
      continue;
    }
    NestedRecord& collective = record.nested[segment.nested];
    if (segment.kind == Segment::Kind::post) {
      double& free_at_us = free_at_us_[collective.stream.value];
      collective.begin_us = std::max(free_at_us, now);
      collective.end_us = free_at_us = collective.begin_us + cost_us_(task, segment);
    } else {
      now = std::max(now, collective.end_us);
    }
  }
  record.end_us = now;
  free_at_us_[task.stream.value] = now;
  records_.push_back(std::move(record));
  return records_.back().id;
}

void VirtualClock::wait(TaskId id) {
  invariant(id.value >= 0 && id.value < graph_.size(), "waits for a task that was never submitted");
}

double VirtualClock::makespan_us() const {
  double makespan_us = 0;
  for (const TaskRecord& record : records_) makespan_us = std::max(makespan_us, record.end_us);
  return makespan_us;
}

}  // namespace orthant::stream
