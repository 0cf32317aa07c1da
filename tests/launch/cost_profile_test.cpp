// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/cost_profile.hpp>

#include <gtest/gtest.h>

namespace orthant::launch {
namespace {

TEST(CostProfile, ARankIsSlowBesideOthersWithTheSameLayers) {
  // The second stage has more to do; one of its ranks is slow, and one a little.
  const std::vector<RankCost> ranks{
      {.place = "pp0 dp0 tp0", .pp = 0, .us = 100},  {.place = "pp0 dp1 tp0", .pp = 0, .us = 120},
      {.place = "pp0 dp2 tp0", .pp = 0, .us = 110},  {.place = "pp1 dp0 tp0", .pp = 1, .us = 520},
      {.place = "pp1 dp1 tp0", .pp = 1, .us = 1500}, {.place = "pp1 dp2 tp0", .pp = 1, .us = 500}};
  const auto ratios = over_fastest(ranks);
  EXPECT_DOUBLE_EQ(ratios.at(1), 1.2);
  EXPECT_DOUBLE_EQ(ratios.at(5), 1);
  EXPECT_EQ(describe_slow_ranks(ranks),
            std::vector<std::string>{"rank 4 (pp1 dp1 tp0) is slow: 1.5 ms for the layers of a micro-batch, 3.0 times "
                                     "what the fastest rank with the same layers takes"});
}

TEST(CostProfile, WithoutAStepNoRankIsSlow) {
  EXPECT_TRUE(describe_slow_ranks({{.place = "pp0 dp0 tp0"}, {.place = "pp0 dp1 tp0"}}).empty());
}

}  // namespace
}  // namespace orthant::launch
