// SPDX-License-Identifier: Apache-2.0
// Generators against published formulas and worked cases.
#include <orthant/pipeline/schedule.hpp>

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/pipeline/lower.hpp>
#include <orthant/pipeline/timing.hpp>
#include <orthant/pipeline/validate.hpp>

namespace orthant::pipeline {
namespace {

double bubble(const Schedule& schedule, const Costs& costs) { return time_schedule(schedule, costs).bubble; }

/// Small whole costs, so that doubles are exact.
Costs random_costs(std::mt19937& random) {
  std::uniform_int_distribution<int> cost(1, 40);
  return {.forward = 1.0 * cost(random), .input = 1.0 * cost(random), .weight = 1.0 * cost(random)};
}

TEST(Timing, MatchesWorkedCases) {
  struct Case {
    const char* schedule;
    int stages, microbatches;
    Costs costs;
    double makespan, bubble;
    std::vector<int> peaks;
  };
  const Costs unit;
  const Costs with_messages{.forward = 10, .input = 10, .weight = 10, .message = 1};
  const Case cases[] = {
      {"gpipe", 2, 4, unit, 15, 3, {4, 4}},
      {"1f1b", 4, 8, unit, 33, 9, {4, 3, 2, 1}},
      {"zb_h1", 4, 8, unit, 27, 3, {4, 3, 2, 1}},
      {"1f1b", 8, 24, unit, 93, 21, {8, 7, 6, 5, 4, 3, 2, 1}},
      {"1f1b", 4, 12, with_messages, 472, 112, {4, 3, 2, 1}},
      {"zb_h1", 4, 12, with_messages, 402, 42, {4, 3, 2, 1}},
      {"1f1b", 8, 24, {18522, 18086, 9337, 601}, 1456749, 354069, {8, 7, 6, 5, 4, 3, 2, 1}},
      {"1f1b", 8, 24, {29718, 29444, 19927, 527}, 2480217, 582081, {8, 7, 6, 5, 4, 3, 2, 1}},
      {"zb_h1", 8, 24, {29718, 29444, 19927, 527}, 2187537, 289401, {8, 7, 6, 5, 4, 3, 2, 1}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << c.schedule << " p" << c.stages << " m" << c.microbatches);
    const Schedule schedule = make_schedule(c.schedule, c.stages, c.microbatches);
    const Timing timing = time_schedule(schedule, c.costs);
    EXPECT_EQ(timing.makespan, c.makespan);
    EXPECT_EQ(timing.bubble, c.bubble);
    EXPECT_EQ(validate(lower(schedule, 1)).peak_activations, c.peaks);
  }
}

TEST(GPipe, BubbleIsStagesMinusOneTimesOneMicrobatch) {
  std::mt19937 random(1);
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 12; ++m) {
      const Costs costs = random_costs(random);
      EXPECT_EQ(bubble(gpipe(p, m), costs), (p - 1) * (costs.forward + costs.input + costs.weight)) << p << " " << m;
    }
  }
}

TEST(OneFOneB, BubbleIsStagesMinusOneTimesOneMicrobatch) {
  std::mt19937 random(2);
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 12; ++m) {
      const Costs costs = random_costs(random);
      EXPECT_EQ(bubble(one_f_one_b(p, m), costs), (p - 1) * (costs.forward + costs.input + costs.weight))
          << p << " " << m;
    }
  }
}

TEST(ZbH1, BubbleIsStagesMinusOneTimesTheExactMaximum) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 1500; ++trial) {
    const int p = std::uniform_int_distribution(1, 8)(random);
    const int m = std::uniform_int_distribution(2 * p, 4 * p)(random);
    const Costs c = random_costs(random);
    EXPECT_EQ(bubble(zb_h1(p, m), c), (p - 1) * std::max({c.forward, c.input, c.forward + c.input - c.weight}))
        << p << " " << m << " " << c.forward << " " << c.input << " " << c.weight;
  }
}

TEST(OneFOneB, HoldsAtMostStagesMinusRankActivations) {
  for (const char* name : {"1f1b", "zb_h1"}) {
    for (int p = 1; p <= 8; ++p) {
      for (int m = 1; m <= 12; ++m) {
        const auto peaks = validate(lower(make_schedule(name, p, m), 1)).peak_activations;
        for (int stage = 0; stage < p; ++stage) EXPECT_EQ(peaks[stage], std::min(m, p - stage)) << name << p << m;
      }
    }
  }
}

TEST(Schedule, TextListsOperationsInOrder) {
  EXPECT_EQ(to_text(zb_h1(2, 3)),
            "rank 0: F0 F1 I0 W0 F2 I1 W1 I2 W2\n"
            "rank 1: F0 I0 F1 I1 W0 F2 I2 W1 W2\n");
  EXPECT_EQ(to_text(lower(gpipe(2, 1), 1)),
            "rank 0: F0 SEND a0 RECV g0 B0 NORM_UNITS TIE NORM STEP\n"
            "rank 1: RECV a0 F0 B0 SEND g0 NORM_UNITS TIE NORM STEP\n");
}

TEST(Schedule, PictureShowsIdleTime) {
  EXPECT_EQ(draw(one_f_one_b(2, 2), {}),
            "rank 0  F0  F1  .   .   B0  B0  .   B1  B1\n"
            "rank 1  .   F0  B0  B0  F1  B1  B1  .   .\n");
}

TEST(Schedule, NamesAreTheOnesThatCanBeMade) {
  for (const std::string_view name : schedule_names()) EXPECT_EQ(make_schedule(name, 2, 3).name, name);
}

TEST(Schedule, NamesAreWhatOneCanTrainWith) {
  for (const std::string_view name : schedule_names()) {
    const Schedule lowered = lower(make_schedule(name, 2, 3), 1);
    for (const auto& ops : lowered.ranks) EXPECT_EQ(ops.back().kind, OpKind::step) << name;
  }
  EXPECT_THROW(make_schedule("forward_only", 2, 3), ConfigError);
}

TEST(Schedule, RejectsWhatItCannotMake) {
  try {
    make_schedule("1f1", 2, 2);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "schedule = \"1f1\" is not known; use one of gpipe, 1f1b, zb_h1");
  }
  EXPECT_THROW(gpipe(0, 1), ConfigError);
  EXPECT_THROW(zb_h1(2, 0), ConfigError);
}

}  // namespace
}  // namespace orthant::pipeline
