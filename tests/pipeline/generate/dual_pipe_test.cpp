// SPDX-License-Identifier: Apache-2.0
// DualPipeV and DualPipe against the numbers of pipelines.md, section 3, and against PyTorch's order.
#include <orthant/pipeline/generate/dual_pipe.hpp>

#include <algorithm>

#include <gtest/gtest.h>

#include <orthant/pipeline/cost/timing.hpp>
#include <orthant/pipeline/generate/catalog.hpp>

namespace orthant::pipeline {
namespace {

/// `ranks` on one side of the turn: dualpipe has two such halves.
Schedule made(const char* name, int ranks, int microbatches) {
  const int halves = std::string_view(name) == "dualpipe" ? 2 : 1;
  return make_schedule({.name = name, .ranks = halves * ranks, .microbatches = halves * microbatches});
}

Timing timed(const Schedule& schedule, StageCosts stage, double overlapped) {
  Costs costs = uniform_costs(stage);
  costs.overlapped = overlapped;
  return time_schedule(schedule, costs);
}

TEST(DualPipe, IdleIsThePublishedFormulaWhenAPairTakesAsLongAsItsParts) {
  for (const char* name : {"dualpipe_v", "dualpipe"}) {
    for (const int ranks : {1, 2, 3, 4, 5, 8}) {
      for (int m = 2 * ranks; m <= 4 * ranks; ++m) {
        const Schedule schedule = made(name, ranks, m);
        const Timing timing = timed(schedule, {}, 3);
        const double formula = (ranks - 1) * (3 + 2 - 3);  // F&B + B - 3 W
        EXPECT_EQ(timing.idle, std::vector<double>(schedule.ranks.size(), formula)) << name << ranks << " " << m;
        EXPECT_EQ(timing.makespan, 6 * m + formula) << name << ranks << " " << m;
        EXPECT_EQ(timing.peak, std::vector<double>(schedule.ranks.size(), 2 * ranks + 1)) << name << ranks << " " << m;
      }
    }
  }
}

TEST(DualPipe, IdleIsAtMostThePublishedFormulaOtherwise) {
  for (const int m : {8, 10, 16}) {
    const Timing half_time = timed(made("dualpipe_v", 4, m), {}, 2);
    EXPECT_EQ(half_time.idle, (std::vector<double>{1, 2, 3, 3})) << m;  // the formula: 3
    const Timing uneven = timed(made("dualpipe_v", 4, m), {2, 3, 1}, 5);
    EXPECT_EQ(std::ranges::max(uneven.idle), 16) << m;  // the formula: 18
  }
  EXPECT_EQ(timed(made("dualpipe_v", 4, 10), {}, 2).makespan, 52);
}

// A half of dualpipe's ranks does what the ranks of dualpipe_v do, each on its own micro-batches.
TEST(DualPipe, IsTwoTimesDualPipeV) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (int m = 2 * ranks; m <= 3 * ranks + 1; ++m) {
      const Schedule v = made("dualpipe_v", ranks, m);
      const Schedule both = made("dualpipe", ranks, m);
      EXPECT_EQ(both.copies, 2);
      EXPECT_EQ(both.placement, mirrored_placement(2 * ranks));
      for (std::size_t rank = 0; rank < both.ranks.size(); ++rank) {
        const auto& of_v = v.ranks[std::min(rank, both.ranks.size() - 1 - rank)];
        const auto& ops = both.ranks[rank];
        ASSERT_EQ(ops.size(), of_v.size());
        for (std::size_t i = 0; i < ops.size(); ++i) {
          EXPECT_EQ(ops[i].kind, of_v[i].kind);
          EXPECT_EQ(ops[i].joins_next, of_v[i].joins_next);
          EXPECT_EQ(ops[i].microbatch.value - both.microbatches_of(ops[i].stage).first, of_v[i].microbatch.value);
          // The position on the way through the pipeline: up to the turn in one half, from the turn on in the other.
          const bool outward = of_v[i].stage.value >= ranks;
          EXPECT_EQ(ops[i].stage.value % both.depth() >= ranks, outward);
        }
      }
    }
  }
}

TEST(DualPipe, FirstPairAtTheTurnRunsApart) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (int m = 2 * ranks; m <= 3 * ranks; ++m) {
      const Schedule schedule = made("dualpipe_v", ranks, m);
      for (int rank = 0; rank < ranks; ++rank) {
        const auto& ops = schedule.ranks[static_cast<std::size_t>(rank)];
        const auto first = std::ranges::find(ops, OpKind::backward, &Op::kind);
        ASSERT_NE(first, ops.begin());
        EXPECT_EQ(std::prev(first)->kind, OpKind::forward);
        EXPECT_EQ(std::prev(first)->joins_next, rank != ranks - 1) << "rank " << rank << " of " << ranks;
      }
    }
  }
}

// The operations, in order, of the schedule of torch.distributed.pipelining (2.11) for 4 ranks and 10 micro-batches.
TEST(DualPipe, OrderIsPyTorchs) {
  EXPECT_EQ(to_text(made("dualpipe_v", 4, 10)),
            "rank 0: F0.0 F0.1 F0.2 F0.3 F0.4 F0.5 F0.6 F7.0 I7.0 W7.0 F7.1 I7.1 W7.1 F7.2 I7.2 W7.2 F7.3 (F0.7 & "
            "B7.3) (F7.4 & B0.0) (F0.8 & B7.4) (F7.5 & B0.1) (F0.9 & B7.5) (F7.6 & B0.2) B7.6 (F7.7 & B0.3) B7.7 (F7.8 "
            "& B0.4) B7.8 (F7.9 & B0.5) B7.9 I0.6 W0.6 I0.7 W0.7 I0.8 W0.8 I0.9 W0.9\n"
            "rank 1: F1.0 F1.1 F1.2 F1.3 F1.4 F6.0 F1.5 F6.1 I6.0 W6.0 F6.2 I6.1 W6.1 F6.3 (F1.6 & B6.2) (F6.4 & B1.0) "
            "(F1.7 & B6.3) (F6.5 & B1.1) (F1.8 & B6.4) (F6.6 & B1.2) (F1.9 & B6.5) (F6.7 & B1.3) B6.6 (F6.8 & B1.4) "
            "B6.7 (F6.9 & B1.5) B6.8 B1.6 I6.9 I1.7 W6.9 I1.8 W1.7 I1.9 W1.8 W1.9\n"
            "rank 2: F2.0 F2.1 F2.2 F5.0 F2.3 F5.1 F2.4 F5.2 I5.0 W5.0 F5.3 (F2.5 & B5.1) (F5.4 & B2.0) (F2.6 & B5.2) "
            "(F5.5 & B2.1) (F2.7 & B5.3) (F5.6 & B2.2) (F2.8 & B5.4) (F5.7 & B2.3) (F2.9 & B5.5) (F5.8 & B2.4) B5.6 "
            "(F5.9 & B2.5) B5.7 B2.6 B5.8 I2.7 I5.9 I2.8 W2.7 I2.9 W5.9 W2.8 W2.9\n"
            "rank 3: F3.0 F4.0 F3.1 F4.1 F3.2 F4.2 F3.3 F4.3 F3.4 B4.0 (F4.4 & B3.0) (F3.5 & B4.1) (F4.5 & B3.1) (F3.6 "
            "& B4.2) (F4.6 & B3.2) (F3.7 & B4.3) (F4.7 & B3.3) (F3.8 & B4.4) (F4.8 & B3.4) (F3.9 & B4.5) (F4.9 & B3.5) "
            "B4.6 B3.6 B4.7 B3.7 I4.8 I3.8 I4.9 I3.9 W4.8 W3.8 W4.9 W3.9\n");
}

}  // namespace
}  // namespace orthant::pipeline
