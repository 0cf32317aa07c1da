// SPDX-License-Identifier: Apache-2.0
// A task: what runs, on which stream, and which buffers it reads and writes. Nobody orders streams by hand: the
// scheduler turns the claims into waits. A claim names a buffer and its content, so a task that would read something
// else than it means to is rejected when it is submitted, not found in a loss curve.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <orthant/core/base/id.hpp>
#include <orthant/core/stream/work.hpp>

namespace orthant::stream {

using StreamId = Id<struct StreamTag>;
using BufferId = Id<struct BufferTag>;
/// Position in submission order, from 0. Ids of finished tasks stay valid.
struct TaskId {
  std::int64_t value = -1;
  friend constexpr auto operator<=>(TaskId, TaskId) = default;
};

/// What a buffer holds, e.g. {"weights", layer 3, step 7}; made with content_of().
using Content = std::uint64_t;

/// A content id from a kind and up to three numbers (SplitMix64 mixing; never 0, which means "never written").
Content content_of(const char* kind, std::int64_t a = 0, std::int64_t b = 0, std::int64_t c = 0);

/// read: the buffer must hold `content`. write: afterwards it holds `content`. A task that accumulates claims both.
struct Claim {
  BufferId buffer;
  Content content = 0;
};

/// One step of a compute task's body, in order, as far as the outside can see it. Declared at submission: this is what
/// reserves the places of nested collectives in their streams, and what the virtual clock runs instead of the body.
struct Segment {
  enum class Kind : std::uint8_t { compute, post, wait };
  Kind kind = Kind::compute;
  double cost_us = 0;  ///< compute: predicted duration. post: predicted duration of the collective.
  int nested = -1;     ///< post, wait: index into Task::nested
};

/// A collective that a body will post while it runs (tensor parallelism inside a layer).
struct NestedCollective {
  std::string name;
  StreamId stream;
};

/// What a running body may do with the collectives that it declared. Bodies post and wait in the declared order.
class TaskScope {
 public:
  virtual ~TaskScope() = default;
  /// Hands the next declared collective its operation. `start` must not block; returns at once.
  virtual void post(std::function<Work()> start) = 0;
  /// Waits for the nested collective `index`, in host time on CPU streams, in stream order on a device.
  virtual void wait(int index) = 0;
};

// Every member has an initialiser, so that designated initialisers may leave it out.
struct Task {
  std::string name = {};  ///< as it stands in the timeline: "F s1 m3", "AG layers.2"
  StreamId stream = {};
  std::vector<Claim> reads = {};
  std::vector<Claim> writes = {};

  /// Compute streams: runs on the stream's own thread and may block in its scope only.
  std::function<void(TaskScope&)> body = {};
  /// Request streams (collectives, channels): starts an operation and returns its handle; must not block.
  std::function<Work()> start = {};

  std::vector<NestedCollective> nested = {};
  std::vector<Segment> segments = {};  ///< empty: one compute segment of cost_us
  double cost_us = 0;                  ///< predicted duration, for the virtual clock
};

}  // namespace orthant::stream
