// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/cost/draw.hpp>

#include <algorithm>

#include <gtest/gtest.h>

#include <orthant/pipeline/generate/catalog.hpp>

namespace orthant::pipeline {
namespace {

std::string picture(const Schedule& schedule, const Costs& costs) {
  return draw(schedule, time_schedule(schedule, costs).ops);
}

TEST(Draw, ShowsIdleTime) {
  const Schedule schedule = make_schedule({.name = "1f1b", .ranks = 2, .microbatches = 2});
  EXPECT_EQ(picture(schedule, {}),
            "rank 0  F0  F1  .   .   B0  B0  .   B1  B1\n"
            "rank 1  .   F0  B0  B0  F1  B1  B1  .   .\n");
}

TEST(Draw, HasAColumnForTheShortestOperation) {
  const Schedule schedule = make_schedule({.name = "1f1b", .ranks = 2, .microbatches = 2});
  EXPECT_EQ(picture(schedule, uniform_costs({10, 10, 10}, 1)), picture(schedule, {}));
  EXPECT_EQ(picture(schedule, uniform_costs({0, 0, 0})), "rank 0\nrank 1\n");
}

TEST(Draw, NamesStagesAndPairs) {
  const auto op = [](OpKind kind, int stage, int m) { return Op{kind, StageId{stage}, MicrobatchId{m}}; };
  Schedule schedule{.name = "pair",
                    .stages = 2,
                    .microbatches = 2,
                    .placement = {0, 0},
                    .ranks = {{op(OpKind::forward, 0, 0), op(OpKind::forward, 1, 0), op(OpKind::forward, 0, 1),
                               op(OpKind::backward, 1, 0), op(OpKind::backward, 0, 0)}}};
  schedule.ranks[0][2].joins_next = true;
  EXPECT_EQ(picture(schedule, {}), "rank 0  F0.0  F1.0  F0.1& B1.0  B1.0  B0.0  B0.0\n");
}

TEST(Draw, IsNeverWiderThanFourHundredColumns) {
  const Schedule schedule = make_schedule({.name = "gpipe", .ranks = 2, .microbatches = 30});
  const std::string text = picture(schedule, uniform_costs({1, 1000, 1000}));
  EXPECT_LE(text.find('\n'), 8u + 400 * 4);
  EXPECT_EQ(std::ranges::count(text, '\n'), 2);
}

}  // namespace
}  // namespace orthant::pipeline
