// SPDX-License-Identifier: Apache-2.0
// GPipe, 1F1B and breadth-first against the formulas of pipelines.md, section 1.6.
#include <orthant/pipeline/generate/looped.hpp>

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include <orthant/pipeline/cost/timing.hpp>
#include <orthant/pipeline/generate/catalog.hpp>
#include <orthant/tests/pipeline/generate/random_costs.hpp>

namespace orthant::pipeline {
namespace {

Timing timed(const char* name, ScheduleRequest request, const Costs& costs = {}) {
  request.name = name;
  return time_schedule(make_schedule(request), costs);
}

TEST(GPipe, BubbleIsStagesMinusOneTimesOneMicrobatchAndTwoMessages) {
  std::mt19937 random(1);
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 12; ++m) {
      const StageCosts stage = random_stage(random);
      const double message = random_int(random, 0, 40);
      const Timing timing = timed("gpipe", {.ranks = p, .microbatches = m}, uniform_costs(stage, message));
      EXPECT_EQ(timing.bubble(), (p - 1) * (sum(stage) + 2 * message)) << p << " " << m;
      EXPECT_EQ(timing.peak, std::vector<double>(static_cast<std::size_t>(p), m));
    }
  }
}

TEST(OneFOneB, BubbleIsStagesMinusOneTimesOneMicrobatch) {
  std::mt19937 random(2);
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 12; ++m) {
      const StageCosts stage = random_stage(random);
      const Timing timing = timed("1f1b", {.ranks = p, .microbatches = m}, uniform_costs(stage));
      EXPECT_EQ(timing.bubble(), (p - 1) * sum(stage)) << p << " " << m;
    }
  }
}

// A message on the way there and one on the way back, for each of the m / p rounds that the last rank's B is waited
// for.
TEST(OneFOneB, WaitsForMessagesInEveryRound) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 1000; ++trial) {
    const int p = random_int(random, 2, 8);
    const int rounds = random_int(random, 1, 5);
    const StageCosts stage = random_stage(random, 20, 60);
    const double message = random_int(random, 0, 20);
    const Timing timing = timed("1f1b", {.ranks = p, .microbatches = p * rounds}, uniform_costs(stage, message));
    EXPECT_EQ(timing.bubble(), (p - 1) * sum(stage) + 2 * message * ((p - 1) * rounds + p - 2)) << p << " " << rounds;
  }
}

TEST(OneFOneB, HoldsAtMostStagesMinusRankActivations) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 12; ++m) {
      const Timing timing = timed("1f1b", {.ranks = p, .microbatches = m});
      for (int rank = 0; rank < p; ++rank)
        EXPECT_EQ(timing.peak[static_cast<std::size_t>(rank)], std::min(m, p - rank));
    }
  }
}

// Not a formula of the source but the same reasoning: the first B is behind all of the last chunk's forwards.
TEST(BreadthFirst, BubbleIsThatOfOneChunkAndAllActivationsAreHeld) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 500; ++trial) {
    const int p = random_int(random, 1, 8);
    const int v = random_int(random, 1, 4);
    const int m = random_int(random, p, 4 * p);
    const StageCosts stage = random_stage(random);
    const Timing timing = timed("breadth_first", {.ranks = p, .microbatches = m, .chunks = v}, uniform_costs(stage));
    EXPECT_EQ(timing.bubble(), (p - 1) * sum(stage)) << p << " " << m << " " << v;
    EXPECT_EQ(timing.peak, std::vector<double>(static_cast<std::size_t>(p), m * v));
  }
}

TEST(BreadthFirst, NeedsTheWeightsOfAChunkInTwoStretchesOnly) {
  for (int v = 1; v <= 4; ++v) {
    const Schedule schedule = make_schedule({.name = "breadth_first", .ranks = 3, .microbatches = 5, .chunks = v});
    for (const auto& ops : schedule.ranks) {
      int stretches = 1;
      for (std::size_t i = 1; i < ops.size(); ++i) stretches += ops[i].stage != ops[i - 1].stage ? 1 : 0;
      EXPECT_EQ(stretches, 2 * v - 1);  // the last chunk's two touch
    }
  }
}

}  // namespace
}  // namespace orthant::pipeline
