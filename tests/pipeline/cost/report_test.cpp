// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/cost/report.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <orthant/pipeline/generate/catalog.hpp>
#include <orthant/pipeline/plan/lower.hpp>

namespace orthant::pipeline {
namespace {

Schedule lowered(const char* name, int p, int m, int slots = 1) {
  return lower(make_schedule({.name = name, .ranks = p, .microbatches = m}), slots);
}

TEST(Report, PrintsWholeNumbersWithoutAFraction) {
  EXPECT_EQ(number_text(1310405), "1310405");
  EXPECT_EQ(number_text(-3), "-3");
  EXPECT_EQ(number_text(0.25), "0.25");
  EXPECT_EQ(number_text(1.0 / 3), "0.333");
  EXPECT_EQ(number_text(2.0004), "2");
  EXPECT_EQ(number_text(-1e-12), "0");
  EXPECT_EQ(number_text(-0.0), "0");
  EXPECT_EQ(number_json(1310405).dump(), "1310405");
  EXPECT_EQ(number_json(0.5).dump(), "0.5");
  EXPECT_EQ(number_json(1e300).dump(), "1e+300");
}

TEST(Report, JsonOfATinyStep) {
  const Schedule plan = lowered("1f1b", 2, 2);
  const auto report = report_json(plan, simulate(plan, {}));
  EXPECT_EQ(report.dump(),
            R"({"schedule":"1f1b","ranks":2,"microbatches":2,"chunks":1,"slots":1,"makespan":9,"span":9,"ideal":6,)"
            R"("bubble":3,"bubble_span":3,"bubble_rate":0.3333333333333333,"idle_per_rank":[3,3],)"
            R"("peak_activations_per_rank":[2,1],"exposed_communication":0,"messages":4,)"
            R"("order":[["F0","F1","B0","B1"],["F0","B0","F1","B1"]]})");
}

// Source: reference section 1.5, ZB-H1 at 8 stages and 24 micro-batches: 0.1585.
TEST(Report, GivesThePublishedBubbleRate) {
  const Schedule plan = lowered("zb_h1", 8, 24);
  const auto report = report_json(plan, simulate(plan, uniform_costs({18522, 18086, 9337}, 601)));
  EXPECT_EQ(report["makespan"].dump(), "1310405");
  EXPECT_NEAR(report["bubble_rate"].get<double>(), 0.1585, 0.00005);
}

TEST(Report, NamesStagesAndPairsInTheOrder) {
  const Schedule plan{.name = "pairs",
                      .stages = 2,
                      .microbatches = 1,
                      .slots = 1,
                      .placement = {0, 0},
                      .ranks = {{{OpKind::forward, StageId{0}, MicrobatchId{0}},
                                 {OpKind::forward, StageId{1}, MicrobatchId{0}},
                                 {OpKind::backward, StageId{1}, MicrobatchId{0}},
                                 {OpKind::backward, StageId{0}, MicrobatchId{0}}}}};
  EXPECT_EQ(report_json(plan, simulate(plan, {}))["order"].dump(), R"([["F0.0","F1.0","B1.0","B0.0"]])");
  Schedule paired = plan;  // of no use, but a pair
  paired.ranks[0][1].joins_next = true;
  EXPECT_EQ(report_json(paired, Simulation{.timing = timing_of(paired, {{{0, 1}, {1, 4}, {1, 4}, {4, 6}}}),
                                           .messages = {},
                                           .exposed_per_rank = {0}})["order"]
                .dump(),
            R"([["F0.0","F1.0&B1.0","B0.0"]])");
}

// By hand: rank 1 waits 0.5 for each of its first F and its last, rank 0 for its first I and its last.
TEST(Report, TableHasTheHeadlineAndALineForEachRank) {
  const Schedule plan = lowered("zb_h1", 2, 3);
  EXPECT_EQ(report_table(plan, simulate(plan, uniform_costs({1, 1, 1}, 0.5))),
            "zb_h1: 2 ranks x 1 chunk(s), 3 micro-batches, 1 slot(s), 6 messages\n"
            "makespan 12, ideal 9, bubble 3 (25.00 % of the makespan)\n"
            "span 12, bubble of the span 3; communication not hidden 2\n"
            "rank           work           idle     peak     not hidden\n"
            "   0              9              3        2              1\n"
            "   1              9              3        1              1\n");
}

}  // namespace
}  // namespace orthant::pipeline
