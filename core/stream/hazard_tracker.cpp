// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/stream/hazard_tracker.hpp>

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>

namespace orthant::stream {
namespace {

const Claim* find(std::span<const Claim> claims, BufferId buffer) {
  const auto it = std::ranges::find(claims, buffer, &Claim::buffer);
  return it == claims.end() ? nullptr : &*it;
}

}  // namespace

BufferId HazardTracker::add_buffer(std::string name) {
  buffers_.push_back({.name = std::move(name), .content = 0, .writer = {}, .readers = {}});
  return BufferId{static_cast<int>(buffers_.size()) - 1};
}

const HazardTracker::Buffer& HazardTracker::at(BufferId id) const {
  invariant(id.value >= 0 && id.value < static_cast<int>(buffers_.size()),
            "a claim names a buffer that was never added");
  return buffers_[id.value];
}

const std::string& HazardTracker::buffer_name(BufferId id) const { return at(id).name; }

void HazardTracker::check(const Task& task) const {
  const auto reject = [&](BufferId buffer, const std::string& why) {
    throw InternalError(fmt::format("task '{}', buffer '{}': {}", task.name, at(buffer).name, why));
  };
  for (const Claim& read : task.reads) {
    const Buffer& buffer = at(read.buffer);
    if (buffer.content == 0)
      reject(read.buffer, fmt::format("reads content {:016x}, but nothing was written", read.content));
    if (read.content != buffer.content) {
      reject(read.buffer, fmt::format("reads content {:016x}, but task #{} wrote {:016x}", read.content,
                                      buffer.writer.value, buffer.content));
    }
  }
  for (std::size_t i = 0; i < task.writes.size(); ++i) {
    const Claim& write = task.writes[i];
    const Buffer& buffer = at(write.buffer);
    if (write.content == 0) reject(write.buffer, "writes content 0, which means 'never written'; use content_of()");
    if (find(std::span(task.writes).first(i), write.buffer)) reject(write.buffer, "is written twice by one task");
    if (buffer.content != 0 && buffer.readers.empty() && !find(task.reads, write.buffer)) {
      reject(write.buffer, fmt::format("writes content {:016x} over {:016x} of task #{}, which nobody has read",
                                       write.content, buffer.content, buffer.writer.value));
    }
  }
}

std::vector<TaskId> HazardTracker::add(TaskId id, const Task& task) {
  check(task);
  std::vector<TaskId> waits_for;
  for (const Claim& read : task.reads) {
    Buffer& buffer = buffers_[read.buffer.value];
    waits_for.push_back(buffer.writer);  // read after write
    const auto same_stream = std::ranges::find(buffer.readers, task.stream, &Reader::stream);
    if (same_stream != buffer.readers.end()) {
      same_stream->task = id;
    } else {
      buffer.readers.push_back({task.stream, id});
    }
  }
  for (const Claim& write : task.writes) {
    Buffer& buffer = buffers_[write.buffer.value];
    if (buffer.content != 0) waits_for.push_back(buffer.writer);                   // write after write
    for (const Reader& reader : buffer.readers) waits_for.push_back(reader.task);  // write after read
    buffer.content = write.content;
    buffer.writer = id;
    buffer.readers.clear();
  }
  std::ranges::sort(waits_for);
  const auto repeated = std::ranges::unique(waits_for);
  waits_for.erase(repeated.begin(), repeated.end());
  std::erase(waits_for, id);  // a task that accumulates is itself the last reader
  return waits_for;
}

}  // namespace orthant::stream
