// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/stream/task_graph.hpp>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>

namespace orthant::stream {

StreamId TaskGraph::add_stream(std::string name, StreamKind kind) {
  streams_.push_back({.name = std::move(name), .kind = kind, .last = {}});
  return StreamId{stream_count() - 1};
}

const TaskGraph::Stream& TaskGraph::at(StreamId id) const {
  invariant(id.value >= 0 && id.value < stream_count(), "a task names a stream that was never added");
  return streams_[id.value];
}

void TaskGraph::check(const Task& task) const {
  const auto require = [&](bool condition, const char* why) {
    if (!condition) throw InternalError(fmt::format("task '{}': {}", task.name, why));
  };
  if (at(task.stream).kind == StreamKind::request) {
    require(!task.body, "has a body, but its stream takes a start()");
    require(task.nested.empty() && task.segments.empty(),
            "has segments or nested collectives, but no body that runs them");
  } else {
    require(!task.start, "has a start(), but its stream takes a body");
  }
  const int nested = static_cast<int>(task.nested.size());
  for (const NestedCollective& collective : task.nested) {
    require(at(collective.stream).kind == StreamKind::request, "a nested collective is not on a request stream");
  }
  int posted = 0;
  std::vector<bool> waited(task.nested.size());
  for (const Segment& segment : task.segments) {
    if (segment.kind == Segment::Kind::post) {
      require(segment.nested == posted, "its segments do not post its nested collectives once each, in order");
      ++posted;
    } else if (segment.kind == Segment::Kind::wait) {
      require(segment.nested >= 0 && segment.nested < posted && !waited[segment.nested],
              "its segments wait for a collective that is not posted yet, or twice");
      waited[segment.nested] = true;
    }
  }
  // An operation that outlived its task would touch memory that the task's claims no longer guard.
  require(posted == nested && std::ranges::count(waited, true) == nested,
          "its segments do not post, and wait for, each of its nested collectives");
}

TaskRecord TaskGraph::admit(const Task& task) {
  check(task);
  TaskRecord record{.id = TaskId{size_}, .name = task.name, .stream = task.stream};
  record.waits_for = hazards_.add(record.id, task);
  TaskId& last = streams_[task.stream.value].last;
  const auto place = std::ranges::lower_bound(record.waits_for, last);
  if (last.value >= 0 && (place == record.waits_for.end() || *place != last)) record.waits_for.insert(place, last);
  for (const NestedCollective& collective : task.nested) {
    record.nested.push_back({.name = collective.name, .stream = collective.stream});
  }
  last = record.id;
  ++size_;
  return record;
}

bool reaches(std::span<const TaskRecord> records, TaskId from, TaskId to) {
  std::vector<TaskId> open{to};
  std::unordered_set<std::int64_t> seen;
  while (!open.empty()) {
    const TaskId id = open.back();
    open.pop_back();
    const auto record = std::ranges::lower_bound(records, id, {}, &TaskRecord::id);
    if (record == records.end() || record->id != id) continue;
    for (const TaskId earlier : record->waits_for) {
      if (earlier == from) return true;
      if (earlier > from && seen.insert(earlier.value).second) open.push_back(earlier);
    }
  }
  return false;
}

}  // namespace orthant::stream
