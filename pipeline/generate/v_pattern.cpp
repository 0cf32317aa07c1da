// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/generate/v_pattern.hpp>

#include <algorithm>

#include <orthant/core/base/error.hpp>
#include <orthant/pipeline/generate/v_raster.hpp>

namespace orthant::pipeline {
namespace {

/// Appends the next micro-batch of a stage each time, as long as there is one: patterns need not know where it ends.
class StageWriter {
 public:
  StageWriter(const OrderProblem& problem, int stage, std::vector<Step>& steps)
      : problem_(problem), stage_(stage), steps_(steps) {}

  void add(StepKind kind) {
    const int microbatch = written_[kind]++;
    if (microbatch < problem_.microbatches) steps_.push_back(problem_.step(kind, stage_, microbatch));
  }
  int written(StepKind kind) const { return written_[kind]; }

 private:
  const OrderProblem& problem_;
  int stage_;
  std::vector<Step>& steps_;
  std::array<int, 3> written_{};
};

/// Forwards of the first stage until its second has one, each followed by it on the ranks behind; then both stages in
/// turn, so that the rank is always busy. Fewer than 2 p - 1 micro-batches leave gaps in the order of 2 p - 1.
std::vector<Step> zero_bubble_row(const OrderProblem& problem, int rank) {
  std::vector<Step> steps;
  const int ranks = problem.ranks, to_turn = ranks - rank, total = std::max(2 * ranks - 1, problem.microbatches);
  StageWriter down(problem, rank, steps), up(problem, 2 * ranks - 1 - rank, steps);
  const auto backward = [](StageWriter& stage) {
    stage.add(kI);
    stage.add(kW);
  };
  for (int i = 0; i < 2 * to_turn - 1; ++i) down.add(kF);
  for (int i = 0; i < rank; ++i) {
    up.add(kF);
    down.add(kF);
  }
  for (int i = 0; i < to_turn; ++i) {
    up.add(kF);
    backward(up);
  }
  while (up.written(kF) < total) {
    if (down.written(kF) < total) down.add(kF);
    backward(down);
    up.add(kF);
    backward(up);
  }
  for (int i = 0; i < rank; ++i) {
    down.add(kI);
    up.add(kI);
  }
  for (int i = 0; i < to_turn; ++i) backward(down);
  for (StageWriter* stage : {&up, &down})
    while (stage->written(kW) < total) stage->add(kW);
  return steps;
}

}  // namespace

int published_peak(VShape shape, int ranks) {
  switch (shape) {
    case VShape::zero_bubble:
      return 2 * ranks;
    case VShape::half:
      return 2 * ((ranks + 2) / 2);
    case VShape::third:
      return 2 * ((ranks + 4) / 3);
  }
  throw InternalError("no such V");
}

std::array<int, 4> block_offsets(VShape shape, int ranks, int rank) {
  if (shape == VShape::half) {
    const int shift = ranks % 2 == 0 ? 3 : 0;
    return {2 * rank, 3 * ranks - 2 - rank, 3 * ranks + shift + 2 * rank - 1, 6 * ranks + shift - 2 - rank};
  }
  const int shift = ranks % 3 == 0 ? 2 : 0;
  return {rank, 2 * ranks - 1 - rank, 2 * ranks + shift + rank, 4 * ranks + shift - 1 - rank};
}

Order published_order(const OrderProblem& problem, VShape shape) {
  if (shape != VShape::zero_bubble) return tightened_blocks(problem, shape);
  Order order;
  for (int rank = 0; rank < problem.ranks; ++rank) order.push_back(zero_bubble_row(problem, rank));
  return order;
}

}  // namespace orthant::pipeline
