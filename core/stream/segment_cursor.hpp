// SPDX-License-Identifier: Apache-2.0
// SegmentCursor: holds a running body to the segments that its task declared. Every back end's TaskScope moves one.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <orthant/core/base/error.hpp>
#include <orthant/core/stream/task.hpp>

namespace orthant::stream {

class SegmentCursor {
 public:
  SegmentCursor() = default;
  SegmentCursor(std::string task_name, std::vector<Segment> segments)
      : task_name_(std::move(task_name)), segments_(std::move(segments)) {}

  /// The body posts: index of the nested collective. Throws InternalError where none is declared.
  int post() { return advance(Segment::Kind::post, "posts a collective"); }
  /// The body waits for `nested`. Throws InternalError where that is not declared.
  void wait(int nested) {
    if (advance(Segment::Kind::wait, "waits for a collective") != nested) {
      throw InternalError("task '" + task_name_ + "': its body waits for another collective than its segments declare");
    }
  }
  /// The body has returned. Throws InternalError if it left out posts or waits.
  void finish() {
    skip_compute();
    if (next_ != segments_.size())
      throw InternalError("task '" + task_name_ + "': its body ends before its segments do");
  }

 private:
  void skip_compute() {
    while (next_ < segments_.size() && segments_[next_].kind == Segment::Kind::compute) ++next_;
  }
  int advance(Segment::Kind kind, const char* does) {
    skip_compute();
    if (next_ == segments_.size() || segments_[next_].kind != kind) {
      throw InternalError("task '" + task_name_ + "': its body " + does + " where its segments declare none");
    }
    return segments_[next_++].nested;
  }

  std::string task_name_;
  std::vector<Segment> segments_;
  std::size_t next_ = 0;
};

}  // namespace orthant::stream
