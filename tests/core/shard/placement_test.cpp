// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/shard/placement.hpp>
#include <random>

namespace orthant::shard {
namespace {

struct Case {
  Shape shape;
  int dim;
  int degree;
};

/// Random one- and two-dim tensors, with more ranks than rows among them.
std::vector<Case> random_cases() {
  std::mt19937 random(7);
  const auto between = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  std::vector<Case> cases;
  for (int i = 0; i < 300; ++i) {
    Shape shape{between(1, 23)};
    if (between(0, 3) > 0) shape.push_back(between(1, 19));
    cases.push_back({shape, between(0, static_cast<int>(shape.size()) - 1), between(1, 9)});
  }
  return cases;
}

TEST(BalancedRange, CutsEvenlyAndInOrder) {
  for (int total = 0; total < 40; ++total) {
    for (int degree = 1; degree < 12; ++degree) {
      std::int64_t next = 0;
      for (int index = 0; index < degree; ++index) {
        const Range range = balanced_range(total, index, degree);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.length(), total / degree);
        EXPECT_LE(range.length(), (total + degree - 1) / degree);
        next = range.end;
      }
      EXPECT_EQ(next, total);
    }
  }
}

TEST(Placement, OwnersOfAShardedAxisTileTheGlobalTensorExactlyOnce) {
  for (const Case& c : random_cases()) {
    std::vector<int> owners(numel(c.shape), 0);
    for (int index = 0; index < c.degree; ++index) {
      const Placement placement = shard(c.shape, c.dim, index, c.degree);
      std::int64_t next_local = 0;
      for (const shard::Run& run : placement.runs()) {
        EXPECT_EQ(run.local, next_local);
        EXPECT_GT(run.length, 0);
        next_local += run.length;
        for (std::int64_t i = 0; i < run.length; ++i) ++owners.at(run.global + i);
      }
      EXPECT_EQ(next_local, numel(placement.local_shape()));
    }
    EXPECT_EQ(owners, std::vector<int>(owners.size(), 1));
  }
}

TEST(Placement, PutsEachElementWhereARowMajorSliceHasIt) {
  for (const Case& c : random_cases()) {
    if (c.shape.size() != 2) continue;
    for (int index = 0; index < c.degree; ++index) {
      const Placement placement = shard(c.shape, c.dim, index, c.degree);
      const std::int64_t row0 = c.dim == 0 ? placement.range.begin : 0;
      const std::int64_t column0 = c.dim == 1 ? placement.range.begin : 0;
      const std::int64_t width = placement.local_shape()[1];
      for (const shard::Run& run : placement.runs()) {
        for (std::int64_t i = 0; i < run.length; ++i) {
          const std::int64_t row = (run.local + i) / width;
          const std::int64_t column = (run.local + i) % width;
          EXPECT_EQ(run.global + i, (row0 + row) * c.shape[1] + column0 + column);
        }
      }
    }
  }
}

TEST(Placement, ReplicatedIsOneRun) {
  EXPECT_EQ(replicate({5, 7}).runs(), (std::vector<shard::Run>{{0, 0, 35}}));
  EXPECT_EQ(replicate({9}).runs(), (std::vector<shard::Run>{{0, 0, 9}}));
  EXPECT_TRUE(replicate({0, 7}).runs().empty());
}

TEST(Placement, RunsOfConsecutiveSlicesConcatenateToRuns) {
  std::mt19937 random(8);
  for (const Case& c : random_cases()) {
    const Placement placement = shard(c.shape, c.dim, c.degree / 2, c.degree);
    const std::int64_t total = numel(placement.local_shape());
    std::vector<shard::Run> joined;
    for (std::int64_t begin = 0; begin < total;) {
      const std::int64_t end = begin + std::uniform_int_distribution<std::int64_t>(1, 30)(random);
      for (const shard::Run& run : placement.runs_within(begin, end)) {
        EXPECT_GE(run.local, begin);
        EXPECT_LE(run.local + run.length, end);
        const bool continues = !joined.empty() && joined.back().local + joined.back().length == run.local &&
                               joined.back().global + joined.back().length == run.global;
        if (continues) {
          joined.back().length += run.length;
        } else {
          joined.push_back(run);
        }
      }
      begin = end;
    }
    EXPECT_EQ(joined, placement.runs());
  }
}

TEST(Placement, BlocksAreTheRunsAsRectangles) {
  for (const auto& placement :
       {replicate({5, 7}), replicate({11}), shard({5, 7}, 0, 1, 2), shard({5, 7}, 1, 1, 3), shard({11}, 0, 1, 2)}) {
    const auto size = numel(placement.local_shape()), columns = placement.global_shape.back();
    for (std::int64_t begin = 0; begin <= size; ++begin) {
      for (std::int64_t end = begin; end <= size; ++end) {
        std::vector<std::int64_t> by_runs, by_blocks;
        for (const auto& run : placement.runs_within(begin, end))
          for (std::int64_t i = 0; i < run.length; ++i) by_runs.push_back(run.global + i);
        std::int64_t local = begin;
        const auto blocks = placement.blocks_within(begin, end);
        for (const auto& block : blocks) {
          EXPECT_EQ(block.local, local);
          local += block.numel();
          for (auto r = block.rows.begin; r < block.rows.end; ++r)
            for (auto c = block.columns.begin; c < block.columns.end; ++c) by_blocks.push_back(r * columns + c);
        }
        ASSERT_EQ(by_blocks, by_runs) << begin << " " << end;
        EXPECT_LE(blocks.size(), 3u);
      }
    }
  }
}

TEST(Placement, RejectsADimThatIsNotThere) {
  EXPECT_THROW(shard({4, 4}, 2, 0, 1), ShapeError);
  EXPECT_THROW(shard({4, 4}, 0, 2, 2), InternalError);
}

}  // namespace
}  // namespace orthant::shard
