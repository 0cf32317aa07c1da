// SPDX-License-Identifier: Apache-2.0
// The memory-limited search against published rates (pipelines.md 1.5), the spans of 7b, and ZB-H1 and H2.
#include <orthant/pipeline/generate/search.hpp>

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/pipeline/cost/timing.hpp>
#include <orthant/pipeline/generate/order_clock.hpp>
#include <orthant/pipeline/generate/zero_bubble.hpp>
#include <orthant/tests/pipeline/generate/complete.hpp>
#include <orthant/tests/pipeline/generate/random_costs.hpp>

namespace orthant::pipeline {
namespace {

constexpr MemoryModel kHalfHeldByW{.forward = 2, .input = -1, .weight = -1};

ScheduleRequest request(int ranks, int microbatches, const Costs& costs, const MemoryModel& memory, double limit = 0) {
  return {.name = "zb_search",
          .ranks = ranks,
          .microbatches = microbatches,
          .chunks = 1,
          .costs = costs,
          .memory = memory,
          .memory_limit = limit};
}

/// Times a search, whose peak must keep within the limit.
Timing searched(const ScheduleRequest& request) {
  const Timing timing = time_schedule(zb_search(request), request.costs, request.memory);
  const double limit = request.memory_limit > 0
                           ? request.memory_limit
                           : request.ranks * (request.memory.forward + std::max(0.0, request.memory.input));
  EXPECT_LE(std::ranges::max(timing.peak), limit * (1 + 1e-9));
  return timing;
}

struct Published {
  int hidden, heads, p, m;
  StageCosts costs;
  double message;
  double rate_1p, rate_2p;
};

// Section 1.5.
constexpr Published kPublished[] = {
    {2304, 24, 8, 24, {18522, 18086, 9337}, 601, .1585, .0433},
    {2304, 24, 8, 32, {18513, 18086, 9331}, 626, .1242, .0039},
    {2304, 24, 8, 64, {18546, 18097, 9321}, 762, .0674, .0026},
    {4096, 32, 8, 24, {29718, 29444, 19927}, 527, .1323, .0029},
    {4096, 32, 8, 32, {29802, 29428, 19530}, 577, .1045, .0022},
    {4096, 32, 8, 64, {29935, 29621, 19388}, 535, .0554, .0010},
    {5120, 40, 16, 48, {11347, 11248, 8132}, 377, .1397, .0066},
    {5120, 40, 16, 64, {11307, 11254, 8101}, 379, .1088, .0054},
    {5120, 40, 16, 128, {11325, 11308, 8109}, 378, .0576, .0028},
    {6144, 48, 32, 96, {10419, 10207, 7715}, 408, .1421, .0038},
    {6144, 48, 32, 128, {10408, 10204, 7703}, 408, .1106, .0029},
    {6144, 48, 32, 256, {10402, 10248, 7698}, 460, .0594, .0018},
};

MemoryModel published_memory(const Published& row) {
  constexpr double kSequence = 1024;
  const double forward = 34.0 * row.hidden + 5 * row.heads * kSequence, weight = -32.0 * row.hidden;
  return {.forward = forward, .input = -(forward + weight), .weight = weight};
}

double rate(const Published& row, double limit) {
  const Timing timing =
      searched(request(row.p, row.m, uniform_costs(row.costs, row.message), published_memory(row), limit));
  return (timing.span - row.m * sum(row.costs)) / timing.span;
}

TEST(ZbSearch, HasThePublishedRatesAtTheMemoryOf1F1B) {
  for (const Published& row : kPublished)
    EXPECT_NEAR(rate(row, 0), row.rate_1p, 0.00005) << "p" << row.p << " m" << row.m;
}

TEST(ZbSearch, HasAboutThePublishedRatesOrLessAtTwiceTheMemory) {
  for (const Published& row : kPublished)
    EXPECT_LE(rate(row, 2 * row.p * published_memory(row).forward), row.rate_2p + 0.001)
        << "p" << row.p << " m" << row.m;
}

// Section 7b: the spans that another search finds.
TEST(ZbSearch, FindsSpansAtMostThoseOfSection7b) {
  struct Case {
    StageCosts costs;
    double limit, span;
  };
  for (const Case& c : {Case{{5, 6, 4}, 10, 193}, Case{{}, 8, 39}, Case{{}, 9, 39}, Case{{}, 10, 38}, Case{{}, 11, 38},
                        Case{{}, 12, 37}, Case{{}, 13, 37}, Case{{}, 14, 36}, Case{{}, 16, 36}}) {
    EXPECT_LE(searched(request(4, 12, uniform_costs(c.costs), kHalfHeldByW, c.limit)).span, c.span) << c.limit;
  }
}

// With tW <= tF, tI and a W that frees no more than its share, the first rank can do no better than ZB-H1: it has p
// forwards to fill the wait for the first gradient, and p - 1 backwards for the way of the last micro-batch.
TEST(ZbSearch, EqualsH1AtTheMemoryOf1F1BWhereThatIsTheBest) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 60; ++trial) {
    const int p = random_int(random, 1, 6), m = random_int(random, 2 * p, 4 * p);
    StageCosts stage = random_stage(random);
    stage.weight = std::min({stage.forward, stage.input, stage.weight});
    const ScheduleRequest r = request(p, m, uniform_costs(stage), kHalfHeldByW, 2 * p);
    EXPECT_EQ(searched(r).span, m * sum(stage) + (p - 1) * (stage.forward + stage.input - stage.weight))
        << p << " " << m;
  }
}

TEST(ZbSearch, IsNeverLongerThanH1AndH2WhereTheyFit) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 60; ++trial) {
    const int p = random_int(random, 1, 6), m = random_int(random, 1, 3 * p);
    Costs costs{.message = 1.0 * random_int(random, 0, 5)};
    costs.stages.clear();
    for (int stage = 0; stage < p; ++stage) costs.stages.push_back(random_stage(random, 10, 40));
    ScheduleRequest r = request(p, m, costs, kHalfHeldByW);
    const Timing at_1p = searched(r);
    EXPECT_LE(at_1p.span, time_schedule(zb_h1(r), costs).span) << p << " " << m;
    r.memory_limit = 2.0 * (2 * p - 1);
    EXPECT_LE(searched(r).span, time_schedule(zb_h2(r), costs).span) << p << " " << m;
  }
}

// Section 7c (4).
TEST(ZbSearch, IsNeverLongerWithALargerLimit) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 10; ++trial) {
    const int p = random_int(random, 2, 6), m = random_int(random, 1, 3 * p);
    const Costs costs = uniform_costs(random_stage(random), random_int(random, 0, 5));
    const MemoryModel memory{.forward = 10, .input = -5.0, .weight = -5.0};
    double last = kNever;
    for (double limit = 10; limit <= 25 * p; limit += random_int(random, 1, 12)) {
      const double span = searched(request(p, m, costs, memory, limit)).span;
      EXPECT_LE(span, last) << p << " " << m << " " << limit;
      last = span;
    }
  }
}

TEST(ZbSearch, IsCompleteInOrderAndRepeatable) {
  std::mt19937 random(4);
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 24; m += 1 + p / 3) {
      for (const double limit : {1.0, 1.0 + 0.5 * random_int(random, 0, 3 * p)}) {
        // Activation checkpointing: what I brings back is more than what F keeps.
        const MemoryModel memory = m % 2 == 0 ? MemoryModel{.forward = 0.4, .input = 0.6, .weight = -1}
                                              : MemoryModel{.forward = 1, .input = -0.6, .weight = -0.4};
        const ScheduleRequest r = request(p, m, uniform_costs(random_stage(random)), memory, limit);
        const Schedule schedule = zb_search(r);
        expect_complete(schedule);
        searched(r);
        if (p <= 4) {
          EXPECT_EQ(to_text(zb_search(r)), to_text(schedule));
        }
      }
    }
  }
}

TEST(ZbSearch, RejectsALimitBelowOneMicrobatch) {
  const MemoryModel checkpointed{.forward = 1, .input = 3, .weight = -4};
  EXPECT_NO_THROW(zb_search(request(2, 2, {}, checkpointed, 4)));
  try {
    zb_search(request(2, 2, {}, checkpointed, 3.5));
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "schedule zb_search with memory_limit = 3.5, but one micro-batch takes 4; give at least that much");
  }
  EXPECT_THROW(zb_search(request(2, 2, {}, {.forward = 1, .input = -1, .weight = -1})), ConfigError);
}

TEST(OrderClock, AgreesWithTimeSchedule) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 100; ++trial) {
    const int p = random_int(random, 1, 6), m = random_int(random, 1, 12);
    Costs costs{.message = 1.0 * random_int(random, 0, 9)};
    costs.stages.clear();
    for (int stage = 0; stage < p; ++stage) costs.stages.push_back(random_stage(random));
    const ScheduleRequest r = request(p, m, costs, {});
    const OrderProblem problem = order_problem(r, loop_placement(p, 1));
    for (const Schedule& schedule : {zb_h1(r), zb_h2(r)}) {
      const Timing timing = time_schedule(schedule, costs);
      const Order order = to_order(problem, schedule);
      const Figures figures = OrderClock(problem).run(order);
      EXPECT_EQ(figures.makespan, timing.makespan);
      EXPECT_EQ(figures.span, timing.span);
      EXPECT_EQ(to_schedule(problem, order, schedule.name).ranks, schedule.ranks);
    }
  }
}

}  // namespace
}  // namespace orthant::pipeline
