// SPDX-License-Identifier: Apache-2.0
// Tracer: what ran when, on one rank. Spans are kept between enable() and disable() only, so that a trace of a long run
// stays bounded. One per rank, made by launch and passed down; all members may be called from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include <orthant/core/base/id.hpp>

namespace orthant::trace {

/// Shared by all processes of a host (CLOCK_MONOTONIC), so that the spans of its ranks line up.
using Clock = std::chrono::steady_clock;

/// A row of the timeline: one per stream, shown in the order in which they were added.
using TrackId = Id<struct TrackTag>;

struct Span {
  std::string name;
  TrackId track;
  Clock::time_point begin;
  Clock::time_point end;
};

class Tracer {
 public:
  TrackId add_track(std::string name);

  void enable() { enabled_ = true; }
  void disable() { enabled_ = false; }
  bool enabled() const { return enabled_; }

  /// Keeps the span, or drops it when the window is not open. Spans of one track must not overlap.
  void record(Span span);

  std::vector<Span> spans() const;
  std::vector<std::string> tracks() const;

 private:
  std::atomic<bool> enabled_ = false;
  mutable std::mutex mutex_;
  std::vector<std::string> tracks_;
  std::vector<Span> spans_;
};

}  // namespace orthant::trace
