// SPDX-License-Identifier: Apache-2.0
// TaskGraph: what every back end does when a task is submitted, so that all of them accept the same tasks and see the
// same dependencies: it checks the task, numbers it and finds what it waits for. No threads, no time.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <orthant/core/stream/hazard_tracker.hpp>
#include <orthant/core/stream/scheduler.hpp>

namespace orthant::stream {

class TaskGraph {
 public:
  StreamId add_stream(std::string name, StreamKind kind);
  BufferId add_buffer(std::string name) { return hazards_.add_buffer(std::move(name)); }

  /// The record of `task` with its id, its nested collectives and what it waits for; times are zero.
  /// Throws InternalError, naming the task, when a stream does not exist or has the wrong kind, when its segments do
  /// not post every nested collective once, in order, and wait for each once, after its post, or when its claims
  /// contradict the submission order (HazardTracker). A task that was rejected leaves no trace.
  TaskRecord admit(const Task& task);

  /// Number of admitted tasks: the ids 0 .. size() - 1 are valid.
  std::int64_t size() const { return size_; }
  int stream_count() const { return static_cast<int>(streams_.size()); }
  const std::string& stream_name(StreamId id) const { return at(id).name; }
  StreamKind stream_kind(StreamId id) const { return at(id).kind; }

 private:
  struct Stream {
    std::string name;
    StreamKind kind;
    TaskId last;
  };
  const Stream& at(StreamId id) const;
  void check(const Task& task) const;

  HazardTracker hazards_;
  std::vector<Stream> streams_;
  std::int64_t size_ = 0;
};

/// Whether `to` begins only after `from` has ended, in every execution: a path of dependencies leads from one to the
/// other. records  sorted by id, as back ends return them; tasks that are not among them are not passed through.
bool reaches(std::span<const TaskRecord> records, TaskId from, TaskId to);

}  // namespace orthant::stream
