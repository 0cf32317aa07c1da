// SPDX-License-Identifier: Apache-2.0
// Appends the operations of one rank: the small language that the hand-written generators are written in.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include <orthant/pipeline/generate/request.hpp>
#include <orthant/pipeline/schedule/schedule.hpp>

namespace orthant::pipeline {

class RankWriter {
 public:
  void add(OpKind kind, int stage, int microbatch) { ops_.push_back({kind, StageId{stage}, MicrobatchId{microbatch}}); }

  /// An overlapped pair: F, and the B that runs with it.
  void add_pair(StageId forward, MicrobatchId forward_microbatch, StageId backward, MicrobatchId backward_microbatch) {
    ops_.push_back({OpKind::forward, forward, forward_microbatch, true});
    ops_.push_back({OpKind::backward, backward, backward_microbatch});
  }

  /// `warm_up` forwards, then one forward and one backward in turn, then the backwards that are left: forward(i) and
  /// backward(i) write the i-th of `total`.
  template <class Forward, class Backward>
  static void one_forward_one_backward(int total, int warm_up, Forward forward, Backward backward) {
    for (int i = 0; i < std::min(warm_up, total); ++i) forward(i);
    for (int i = 0; i < total; ++i) {
      if (i + warm_up < total) forward(i + warm_up);
      backward(i);
    }
  }

  /// The same with B split: weight(i) follows input(i + lag), and the last `lag` of them come at the end.
  template <class Forward, class Input, class Weight>
  static void one_forward_one_input(int total, int warm_up, int lag, Forward forward, Input input, Weight weight) {
    one_forward_one_backward(total, warm_up, forward, [&](int i) {
      input(i);
      if (i >= lag) weight(i - lag);
    });
    for (int i = std::max(0, total - lag); i < total; ++i) weight(i);
  }

  std::vector<Op> take() { return std::move(ops_); }

 private:
  std::vector<Op> ops_;
};

/// The schedule that write(writer, rank) writes, rank by rank.
template <class Write>
Schedule write_schedule(const ScheduleRequest& request, Placement placement, Write write) {
  Schedule schedule{.name = request.name,
                    .stages = static_cast<int>(placement.size()),
                    .microbatches = request.microbatches,
                    .placement = std::move(placement),
                    .ranks = {}};
  for (int rank = 0; rank < request.ranks; ++rank) {
    RankWriter writer;
    write(writer, rank);
    schedule.ranks.push_back(writer.take());
  }
  return schedule;
}

}  // namespace orthant::pipeline
