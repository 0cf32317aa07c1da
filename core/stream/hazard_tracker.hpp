// SPDX-License-Identifier: Apache-2.0
// From claims to dependencies: read-after-write, write-after-read, write-after-write. Pure bookkeeping without threads
// or time, used by every back end of the scheduler, so that what the tests prove about the graph holds for what runs.
#pragma once

#include <string>
#include <vector>

#include <orthant/core/stream/task.hpp>

namespace orthant::stream {

class HazardTracker {
 public:
  BufferId add_buffer(std::string name);
  const std::string& buffer_name(BufferId) const;

  /// Records the claims of task `id` and returns the earlier tasks it must wait for (sorted, no duplicates). Of the
  /// readers on one stream only the last is returned, since a stream runs in order: so memory does not grow with tasks.
  /// Throws InternalError, naming task, buffer and both contents, when a read's content is not the last one written, or
  /// when a write replaces a content that nobody has read. A task that was rejected leaves no trace.
  std::vector<TaskId> add(TaskId id, const Task& task);

 private:
  struct Reader {
    StreamId stream;
    TaskId task;
  };
  struct Buffer {
    std::string name;
    Content content = 0;
    TaskId writer;
    std::vector<Reader> readers;  ///< since `writer`, the last of each stream
  };
  void check(const Task& task) const;
  const Buffer& at(BufferId) const;
  std::vector<Buffer> buffers_;
};

}  // namespace orthant::stream
