// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/generate/dual_pipe.hpp>

#include <deque>

#include <fmt/format.h>

#include <orthant/pipeline/generate/rank_writer.hpp>

namespace orthant::pipeline {
namespace {

/// What goes through one rank in one direction.
struct Direction {
  StageId stage;
  MicrobatchId next_forward;
  MicrobatchId next_backward = next_forward;
};

/// A rank between the end of the pipeline and its turn, `to_end` and `to_turn` ranks away.
class TwoWayRank {
 public:
  TwoWayRank(RankWriter& writer, Direction inward, Direction outward)
      : writer_(writer), inward_(inward), outward_(outward) {}

  /// microbatches  of one direction, at least 2 (to_end + to_turn + 1).
  void write(int to_end, int to_turn, int microbatches) {
    warm_up(to_end, to_turn);
    main_phase(microbatches - 2 * to_turn - to_end - 1, to_turn);
    cool_down(to_end, to_turn);
  }

 private:
  void warm_up(int to_end, int to_turn) {
    for (int i = 0; i < 2 * to_turn; ++i) forward(inward_);
    for (int i = 0; i <= to_end; ++i) {
      forward(inward_);
      forward(outward_);
    }
    for (int i = 0; i < to_turn; ++i) {
      input(outward_);
      weight();
      forward(outward_);
    }
  }

  void main_phase(int count, int to_turn) {
    for (int i = 0; i < count; ++i) {
      if (i == 0 && to_turn == 0) {
        // Apart, so that what comes back from the turn need not wait for this B.
        forward(inward_);
        backward(outward_);
      } else {
        pair(inward_, outward_);
      }
      pair(outward_, inward_);
    }
    for (int i = 0; i < to_turn; ++i) {
      backward(outward_);
      pair(outward_, inward_);
    }
  }

  /// 2 (to_end + 1) + to_turn backwards. All but the first to_end + 1 are split, so that the ranks after this one get
  /// their gradients sooner and W fills the end.
  void cool_down(int to_end, int to_turn) {
    for (int i = 0; i < 2 * (to_end + 1); ++i) {
      Direction& direction = i % 2 == 0 ? outward_ : inward_;
      if (i <= to_end)
        backward(direction);
      else
        input(direction);
    }
    for (int i = 0; i < to_turn; ++i) {
      weight();
      input(inward_);
    }
    for (int i = 0; i <= to_end; ++i) weight();
  }

  void forward(Direction& on) { writer_.add(OpKind::forward, on.stage.value, on.next_forward.value++); }
  void backward(Direction& on) { writer_.add(OpKind::backward, on.stage.value, on.next_backward.value++); }
  void pair(Direction& forward, Direction& backward) {
    writer_.add_pair(forward.stage, forward.next_forward, backward.stage, backward.next_backward);
    ++forward.next_forward.value;
    ++backward.next_backward.value;
  }
  void input(Direction& on) {
    weights_.push_back({OpKind::backward_weight, on.stage, on.next_backward});
    writer_.add(OpKind::backward_input, on.stage.value, on.next_backward.value++);
  }
  /// The oldest that is left.
  void weight() {
    writer_.add(OpKind::backward_weight, weights_.front().stage.value, weights_.front().microbatch.value);
    weights_.pop_front();
  }

  RankWriter& writer_;
  Direction inward_, outward_;
  std::deque<Op> weights_;
};

}  // namespace

Schedule dualpipe_v(const ScheduleRequest& request) {
  return write_schedule(request, v_placement(request.ranks), [&](RankWriter& writer, int rank) {
    const Direction inward{StageId{rank}, MicrobatchId{0}};
    const Direction outward{StageId{2 * request.ranks - 1 - rank}, MicrobatchId{0}};
    TwoWayRank(writer, inward, outward).write(rank, request.ranks - 1 - rank, request.microbatches);
  });
}

Schedule dualpipe(const ScheduleRequest& request) {
  const int half = request.ranks / 2;
  Schedule schedule = write_schedule(request, mirrored_placement(request.ranks), [&](RankWriter& writer, int rank) {
    const Direction first{StageId{rank}, MicrobatchId{0}};
    const Direction second{StageId{2 * request.ranks - 1 - rank}, MicrobatchId{request.microbatches / 2}};
    const bool in_first_half = rank < half;
    const int to_end = in_first_half ? rank : request.ranks - 1 - rank;
    TwoWayRank(writer, in_first_half ? first : second, in_first_half ? second : first)
        .write(to_end, half - 1 - to_end, request.microbatches / 2);
  });
  schedule.copies = 2;
  return schedule;
}

std::string dualpipe_v_rule(const ScheduleRequest& request) {
  const int least = 2 * request.ranks;
  if (request.microbatches >= least) return {};
  return fmt::format("schedule {} over {} ranks has {} micro-batches but wants two a rank; use at least {}",
                     request.name, request.ranks, request.microbatches, least);
}

std::string dualpipe_rule(const ScheduleRequest& request) {
  if (request.ranks % 2 != 0) {
    return fmt::format(
        "schedule {} runs the pipeline from both ends and wants an even number of ranks, not {}; use dualpipe_v",
        request.name, request.ranks);
  }
  if (const std::string fault = dualpipe_v_rule(request); !fault.empty()) return fault;
  if (request.microbatches % 2 == 0) return {};
  return fmt::format("schedule {} splits the micro-batches over two directions; {} is odd, use {} or {}", request.name,
                     request.microbatches, request.microbatches - 1, request.microbatches + 1);
}

}  // namespace orthant::pipeline
