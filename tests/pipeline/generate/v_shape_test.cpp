// SPDX-License-Identifier: Apache-2.0
// Schedules on a V against published figures (pipelines.md, sections 2 and 7a) and against 1F1B.
#include <orthant/pipeline/generate/v_shape.hpp>

#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/pipeline/cost/timing.hpp>
#include <orthant/pipeline/generate/looped.hpp>
#include <orthant/pipeline/generate/order_clock.hpp>
#include <orthant/tests/pipeline/generate/complete.hpp>
#include <orthant/tests/pipeline/generate/random_costs.hpp>

namespace orthant::pipeline {
namespace {

using Generator = Schedule (*)(const ScheduleRequest&);
constexpr Generator kGenerators[] = {zb_v, v_half, v_min};

ScheduleRequest request(int ranks, int microbatches, const Costs& costs = {}) {
  return {.name = "v", .ranks = ranks, .microbatches = microbatches, .chunks = 2, .costs = costs};
}

Timing timed(Generator generate, const ScheduleRequest& request) {
  return time_schedule(generate(request), request.costs);
}

double peak(const Timing& timing) { return std::ranges::max(timing.peak); }

double most_activations(Generator generate, int p) {
  return generate == zb_v ? 2 * p : generate == v_half ? 2 * ((p + 2) / 2) : 2 * ((p + 4) / 3);
}

/// With both stages of a rank in one.
double one_f_one_b_makespan(const ScheduleRequest& request) {
  ScheduleRequest whole = request;
  const StageCosts& half = request.costs.stages.front();
  whole.costs.stages = {{2 * half.forward, 2 * half.input, 2 * half.weight}};
  return time_schedule(one_f_one_b(whole), whole.costs).makespan;
}

// Section 2.
TEST(VShapes, HaveThePublishedBubblesAndPeaksAtUnitCost) {
  struct Row {
    int p, m;
    double min_bubble, min_peak, half_bubble, half_peak;
  };
  for (const Row& row :
       {Row{4, 8, 11, 4, 5, 6}, Row{4, 12, 11, 4, 5, 6}, Row{6, 18, 17, 6, 11, 8}, Row{8, 16, 27, 8, 17, 10},
        Row{8, 24, 27, 8, 17, 10}, Row{9, 27, 29, 8, 23, 10}, Row{16, 48, 59, 12, 41, 18}}) {
    SCOPED_TRACE(testing::Message() << "p" << row.p << " m" << row.m);
    const ScheduleRequest r = request(row.p, row.m);
    const Timing third = timed(v_min, r), half = timed(v_half, r), whole = timed(zb_v, r);
    EXPECT_EQ(third.bubble(), row.min_bubble);
    EXPECT_EQ(peak(third), row.min_peak);
    EXPECT_EQ(half.bubble(), row.half_bubble);
    EXPECT_EQ(peak(half), row.half_peak);
    EXPECT_EQ(whole.bubble_span(), 0);
    EXPECT_EQ(whole.bubble(), row.p - 1);
    EXPECT_EQ(whole.peak, std::vector<double>(static_cast<std::size_t>(row.p), 2.0 * row.p));
  }
}

// Section 7a, ids 23, 26 and 28.
TEST(VShapes, MatchWorkedCases) {
  const Timing id_23 = timed(zb_v, request(4, 8));
  EXPECT_EQ(id_23.makespan, 51);
  EXPECT_EQ(id_23.span, 48);
  EXPECT_EQ(id_23.peak, std::vector<double>(4, 8));
  const Timing id_26 = timed(zb_v, request(4, 12, uniform_costs({2, 2, 1})));
  EXPECT_EQ(id_26.makespan, 126);
  EXPECT_EQ(id_26.bubble(), 6);
  EXPECT_EQ(id_26.peak, std::vector<double>(4, 8));
  const Timing id_28 = timed(v_min, request(4, 12));
  EXPECT_EQ(id_28.makespan, 83);
  EXPECT_EQ(id_28.peak, std::vector<double>(4, 4));
}

TEST(ZbV, HasNoBubbleInItsSpanAtUnitCostWithEnoughMicrobatches) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 2 * p - 1; m <= 4 * p; ++m) {
      const Timing timing = timed(zb_v, request(p, m));
      EXPECT_EQ(timing.bubble_span(), 0) << p << " " << m;
      EXPECT_EQ(timing.bubble(), p - 1) << p << " " << m;
    }
  }
}

// Section 2: what the published orders and heuristics take.
TEST(VShapes, AreNoLongerThanPublishedWithUnequalCosts) {
  struct Case {
    int p, m;
    Costs costs;
    double third, half, whole, whole_span;
  };
  for (const Case& c : {Case{8, 24, uniform_costs({4959, 5217, 3519}, 213), 915753, 769413, 708612, 688104},
                        Case{4, 12, uniform_costs({2, 2, 1}), 165, 135, 126, 125},
                        Case{4, 12, uniform_costs({10, 12, 8}, 1), 1032, 816, 771, 754}}) {
    const ScheduleRequest r = request(c.p, c.m, c.costs);
    const double one_f_one_b = one_f_one_b_makespan(r);
    const Timing third = timed(v_min, r), half = timed(v_half, r), whole = timed(zb_v, r);
    EXPECT_LE(third.makespan, std::min(c.third, one_f_one_b));
    EXPECT_LE(half.makespan, std::min(c.half, one_f_one_b));
    EXPECT_LE(whole.makespan, std::min(c.whole, one_f_one_b));
    EXPECT_LE(whole.span, c.whole_span);
  }
}

/// Random costs within a factor of 8 of each other, W at least `least_weight` times F + I, and messages of up to half
/// the smallest; m from 1.
void expect_no_longer_than_one_f_one_b(Generator generate, double least_weight, unsigned seed) {
  std::mt19937 random(seed);
  for (int trial = 0; trial < 12; ++trial) {
    const int p = random_int(random, 2, 5), m = random_int(random, 1, 3 * p);
    StageCosts stage = random_stage(random, 5, 40);
    stage.weight = std::max(stage.weight, std::ceil(least_weight * (stage.forward + stage.input)));
    const double message =
        random_int(random, 0, static_cast<int>(std::min({stage.forward, stage.input, stage.weight})) / 2);
    const ScheduleRequest r = request(p, m, uniform_costs(stage, message));
    const Timing timing = timed(generate, r);
    EXPECT_LE(timing.makespan, one_f_one_b_makespan(r))
        << p << " " << m << " costs " << stage.forward << " " << stage.input << " " << stage.weight << " " << message;
    EXPECT_LE(peak(timing), most_activations(generate, p));
  }
}

TEST(ZbV, IsNoLongerThan1F1B) { expect_no_longer_than_one_f_one_b(zb_v, 0, 1); }
TEST(VHalf, IsNoLongerThan1F1BWhereWIsAFifthOfFAndI) { expect_no_longer_than_one_f_one_b(v_half, 0.2, 2); }
TEST(VMin, IsNoLongerThan1F1BWhereWIsMoreThanHalfOfFAndI) { expect_no_longer_than_one_f_one_b(v_min, 0.6, 3); }

TEST(VShapes, AreCompleteAndInOrderAtUnitCost) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 24; ++m) {
      for (const Generator generate : kGenerators) {
        const Schedule schedule = generate(request(p, m));
        expect_complete(schedule);
        EXPECT_EQ(schedule.placement, v_placement(p));
        EXPECT_LE(peak(time_schedule(schedule, {})), most_activations(generate, p)) << p << " " << m;
      }
    }
  }
}

TEST(VShapes, AreCompleteRepeatableAndWithinTheirPeaksAtRandomCosts) {
  std::mt19937 random(4);
  for (int p = 1; p <= 8; ++p) {
    for (int trial = 0; trial < 2; ++trial) {
      ScheduleRequest r = request(p, random_int(random, 1, 2 + 16 / p));
      r.costs.message = random_int(random, 0, 5);
      r.costs.stages.clear();
      for (int stage = 0; stage < 2 * p; ++stage) r.costs.stages.push_back(random_stage(random));
      for (const Generator generate : kGenerators) {
        const Schedule schedule = generate(r);
        expect_complete(schedule);
        EXPECT_LE(peak(time_schedule(schedule, r.costs)), most_activations(generate, p)) << p << " " << r.microbatches;
        const MemoryModel waiting{.forward = 0, .input = 1, .weight = -1};
        EXPECT_LE(peak(time_schedule(schedule, r.costs, waiting)), most_activations(generate, p));
        if (p <= 3) {
          EXPECT_EQ(to_text(generate(r)), to_text(schedule));
        }
      }
    }
  }
}

TEST(VShapes, KeepWithinAMemoryLimitToo) {
  std::mt19937 random(5);
  for (const MemoryModel& memory :
       {MemoryModel{.forward = 2, .input = -1, .weight = -1}, MemoryModel{.forward = 1, .input = 2, .weight = -3}}) {
    for (const Generator generate : kGenerators) {
      ScheduleRequest r = request(random_int(random, 1, 4), 5, uniform_costs(random_stage(random)));
      r.memory = memory;
      r.memory_limit = 4;
      const Schedule schedule = generate(r);
      expect_complete(schedule);
      EXPECT_LE(peak(time_schedule(schedule, r.costs, memory)), r.memory_limit);
      r.memory_limit = 3.9;
      EXPECT_THROW(generate(r), ConfigError);
    }
  }
}

// Section 7c (7): there is no message at the turn, which changes its rank; all else is the same.
TEST(VShapes, TakeAsLongWithTheRanksInReverse) {
  const ScheduleRequest r = request(4, 6, uniform_costs({3, 4, 2}, 1));
  for (const Generator generate : kGenerators) {
    const Schedule schedule = generate(r);
    Schedule reversed = schedule;
    for (int& rank : reversed.placement) rank = r.ranks - 1 - rank;
    std::ranges::reverse(reversed.ranks);
    const Timing there = time_schedule(schedule, r.costs);
    Timing back = time_schedule(reversed, r.costs);
    EXPECT_EQ(back.makespan, there.makespan);
    EXPECT_EQ(back.span, there.span);
    std::ranges::reverse(back.peak);
    EXPECT_EQ(back.peak, there.peak);
  }
}

TEST(OrderClock, PutsWeightsWhereTheyFitAndTimesThemAsTimeScheduleDoes) {
  std::mt19937 random(6);
  for (int trial = 0; trial < 50; ++trial) {
    const int p = random_int(random, 1, 6);
    const ScheduleRequest r =
        request(p, random_int(random, 1, 12), uniform_costs(random_stage(random), random_int(random, 0, 5)));
    OrderProblem problem = order_problem(r, v_placement(p));
    const double most = random_int(random, 1, 4);
    problem.bounds = {{{0, 1, -1}, most}};
    Order order = to_order(problem, zb_v(request(p, r.microbatches)));
    for (auto& steps : order) std::erase_if(steps, [](Step step) { return step.kind == kW; });
    Order filled;
    const Figures figures = OrderClock(problem).run_filled(order, random_int(random, 0, 2) / 2.0, &filled);
    const Schedule schedule = to_schedule(problem, filled, "filled");
    expect_complete(schedule);
    EXPECT_EQ(figures.makespan, time_schedule(schedule, r.costs).makespan);
    EXPECT_LE(peak(time_schedule(schedule, r.costs, {.forward = 0, .input = 1, .weight = -1})), most);
    problem.bounds = {{{1, -1, 0}, 1}};  // no place for two stages' F
    EXPECT_EQ(OrderClock(problem).run_filled(order, 0).makespan, kNever);
  }
}

}  // namespace
}  // namespace orthant::pipeline
