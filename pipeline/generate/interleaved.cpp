// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/generate/interleaved.hpp>

#include <fmt/format.h>

#include <orthant/pipeline/generate/rank_writer.hpp>

namespace orthant::pipeline {
namespace {

int round_count(int microbatches, int ranks) { return std::max(1, microbatches / ranks); }

bool has_equal_rounds(int microbatches, int ranks) { return microbatches % round_count(microbatches, ranks) == 0; }

/// The order in which one rank takes its chunks and micro-batches.
class Rounds {
 public:
  Rounds(const ScheduleRequest& request, int rank)
      : ranks_(request.ranks),
        chunks_(request.chunks),
        rank_(rank),
        length_(request.microbatches / round_count(request.microbatches, request.ranks)) {}

  /// Forwards until the last rank's first micro-batch is through its last chunk.
  int warm_up() const { return (chunks_ - 1) * length_; }

  void forward(RankWriter& writer, int i) const { add(writer, OpKind::forward, chunk(i), i); }
  /// Micro-batches as in the forwards, last chunk first.
  void backward(RankWriter& writer, OpKind kind, int i) const { add(writer, kind, chunks_ - 1 - chunk(i), i); }

 private:
  int chunk(int i) const { return i / length_ % chunks_; }
  void add(RankWriter& writer, OpKind kind, int chunk, int i) const {
    const int round = i / (length_ * chunks_);
    writer.add(kind, chunk * ranks_ + rank_, round * length_ + i % length_);
  }

  int ranks_, chunks_, rank_;
  int length_;  ///< of a round, in micro-batches
};

}  // namespace

Schedule interleaved(const ScheduleRequest& request) {
  return write_schedule(request, loop_placement(request.ranks, request.chunks), [&](RankWriter& writer, int rank) {
    const Rounds rounds(request, rank);
    RankWriter::one_forward_one_backward(
        request.microbatches * request.chunks, rounds.warm_up() + 2 * (request.ranks - 1 - rank),
        [&](int i) { rounds.forward(writer, i); }, [&](int i) { rounds.backward(writer, OpKind::backward, i); });
  });
}

Schedule interleaved_zb(const ScheduleRequest& request) {
  return write_schedule(request, loop_placement(request.ranks, request.chunks), [&](RankWriter& writer, int rank) {
    const Rounds rounds(request, rank);
    RankWriter::one_forward_one_input(
        request.microbatches * request.chunks, rounds.warm_up() + request.ranks - 1 - rank, rank,
        [&](int i) { rounds.forward(writer, i); }, [&](int i) { rounds.backward(writer, OpKind::backward_input, i); },
        [&](int i) { rounds.backward(writer, OpKind::backward_weight, i); });
  });
}

std::string interleaved_rule(const ScheduleRequest& request) {
  const auto [ranks, found] = std::pair(request.ranks, request.microbatches);
  if (has_equal_rounds(found, ranks)) return {};
  int fewer = found, more = found;
  while (!has_equal_rounds(fewer, ranks)) --fewer;
  while (!has_equal_rounds(more, ranks)) ++more;
  return fmt::format(
      "schedule {} over {} ranks takes {} micro-batches in {} rounds, which must be equally long; use {} or {} "
      "micro-batches",
      request.name, ranks, found, round_count(found, ranks), fewer, more);
}

}  // namespace orthant::pipeline
