// SPDX-License-Identifier: Apache-2.0
// Interleaved schedules against the formulas and cases of pipelines.md, sections 1.6 and 7a.
#include <orthant/pipeline/generate/interleaved.hpp>

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include <orthant/pipeline/cost/timing.hpp>
#include <orthant/pipeline/generate/catalog.hpp>
#include <orthant/tests/pipeline/generate/random_costs.hpp>

namespace orthant::pipeline {
namespace {

Timing timed(const char* name, ScheduleRequest request, const Costs& costs = {}, const MemoryModel& memory = {}) {
  request.name = name;
  return time_schedule(make_schedule(request), costs, memory);
}

TEST(Interleaved, BubbleIsThatOfOneChunk) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 1000; ++trial) {
    const int p = random_int(random, 1, 8);
    const int v = random_int(random, 1, 4);
    const int m = p * random_int(random, 1, 4);
    const StageCosts stage = random_stage(random);
    const Timing timing = timed("interleaved", {.ranks = p, .microbatches = m, .chunks = v}, uniform_costs(stage));
    EXPECT_EQ(timing.bubble(), (p - 1) * sum(stage)) << p << " " << m << " " << v;
  }
}

TEST(Interleaved, HoldsItsWarmUpAndOneMore) {
  for (int p = 1; p <= 8; ++p) {
    for (const int m : {p, 2 * p, 3 * p}) {
      for (int v = 1; v <= 4; ++v) {
        const Timing timing = timed("interleaved", {.ranks = p, .microbatches = m, .chunks = v});
        for (int rank = 0; rank < p; ++rank) {
          EXPECT_EQ(timing.peak[static_cast<std::size_t>(rank)], std::min(v * m, (v - 1) * p + 2 * (p - 1 - rank) + 1))
              << p << " " << m << " " << v << " " << rank;
        }
      }
    }
  }
}

// pipelines.md, section 7a, id 22: M_B = 2, M_W = 1.
TEST(InterleavedZb, MatchesWorkedCase) {
  const Timing timing = timed("interleaved_zb", {.ranks = 4, .microbatches = 12, .chunks = 2}, {},
                              {.forward = 2, .input = -1, .weight = -1});
  EXPECT_EQ(timing.makespan, 75);
  EXPECT_EQ(timing.span, 75);
  EXPECT_EQ(timing.peak, (std::vector<double>{16, 15, 14, 13}));
}

TEST(InterleavedZb, BubbleIsAThirdOfInterleavedAtUnitCost) {
  for (int p = 1; p <= 8; ++p) {
    for (int rounds = 1; rounds <= 3; ++rounds) {
      for (const int v : {1, 2, 4}) {
        const ScheduleRequest request{.ranks = p, .microbatches = p * rounds, .chunks = v};
        EXPECT_EQ(timed("interleaved_zb", request).bubble(), p - 1) << p << " " << rounds << " " << v;
        EXPECT_EQ(timed("interleaved", request).bubble(), 3 * (p - 1)) << p << " " << rounds << " " << v;
      }
    }
  }
}

}  // namespace
}  // namespace orthant::pipeline
