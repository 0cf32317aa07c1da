// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/stage_split.hpp>

#include <algorithm>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace orthant::launch {
namespace {

double dearest(const std::vector<double>& costs, const std::vector<int>& blocks) {
  double most = 0;
  std::size_t next = 1;
  for (std::size_t s = 0; s < blocks.size(); ++s) {
    double sum = s == 0 ? costs.front() : 0;
    for (int b = 0; b < blocks[s]; ++b) sum += costs[next++];
    if (s + 1 == blocks.size()) sum += costs.back();
    most = std::max(most, sum);
  }
  return most;
}

/// Every way to deal `blocks` out to `stages`, one each at least.
template <class Visit>
void for_each_split(int blocks, int stages, std::vector<int>& so_far, const Visit& visit) {
  if (stages == 1) {
    so_far.push_back(blocks);
    visit(so_far);
    so_far.pop_back();
    return;
  }
  for (int here = 1; here <= blocks - (stages - 1); ++here) {
    so_far.push_back(here);
    for_each_split(blocks - here, stages - 1, so_far, visit);
    so_far.pop_back();
  }
}

TEST(SplitBlocks, MakesTheDearestStageAsCheapAsAnySplitCould) {
  std::mt19937 random(1);
  std::uniform_int_distribution<int> cost(0, 20);
  for (int trial = 0; trial < 300; ++trial) {
    const int blocks = std::uniform_int_distribution(1, 9)(random);
    const int stages = std::uniform_int_distribution(1, blocks)(random);
    std::vector<double> costs(static_cast<std::size_t>(blocks) + 2);
    std::ranges::generate(costs, [&] { return cost(random); });
    const auto split = split_blocks(costs, stages);
    EXPECT_EQ(static_cast<int>(split.size()), stages);
    EXPECT_EQ(std::accumulate(split.begin(), split.end(), 0), blocks);
    EXPECT_GE(std::ranges::min(split), 1);
    double best = 1e9;
    std::vector<int> so_far;
    for_each_split(blocks, stages, so_far, [&](const auto& any) { best = std::min(best, dearest(costs, any)); });
    EXPECT_EQ(dearest(costs, split), best) << "trial " << trial;
  }
}

TEST(SplitBlocks, CountsEmbeddingAndHead) {
  EXPECT_EQ(split_blocks({0, 1, 1, 1, 1, 1, 1, 1, 1, 0}, 4), (std::vector{2, 2, 2, 2}));
  EXPECT_EQ(split_blocks({0, 1, 1, 1, 1, 1, 1, 1, 1, 2}, 4), (std::vector{3, 3, 1, 1}));
  EXPECT_EQ(split_blocks({2, 1, 1, 1, 1, 1, 1, 0}, 2), (std::vector{2, 4}));
  EXPECT_EQ(split_blocks({0, 1, 1, 1, 1, 1, 0}, 2), (std::vector{3, 2})) << "of equals, more on the earlier";
}

TEST(SpansOf, CoverEveryLayerOnce) {
  const auto spans = spans_of({2, 0, 1});
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0].first.value, 0);
  EXPECT_EQ(spans[0].last.value, 2);
  EXPECT_EQ(spans[2].first.value, 3);
  EXPECT_EQ(spans[2].last.value, 4);
}

}  // namespace
}  // namespace orthant::launch
