// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/shard/slice_ranges.hpp>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>

namespace orthant::shard {
namespace {

constexpr UnitId kUnit{0};

/// q [4, 10] of this rank's own from 0, k [2, 10] from 40 that two ranks hold, and from 64 a norm [5] that four do.
ParameterTable table_of(int rank, bool norm_partial) {
  ParameterTable table;
  table.add_unit({.id = kUnit, .name = "unit"});
  const auto key = shard_pieces({4, 10}, 0, 2, rank, 4);
  table.add_region(kUnit, {{.name = "q", .placement = shard_pieces({16, 10}, 0, 4, rank, 4)},
                           {.name = "k", .placement = key, .partial = true}});
  table.add_region(kUnit, {{.name = "norm", .placement = replicate({5}, rank, 4), .partial = norm_partial}});
  return table;
}

TEST(ShardPieces, NeighboursHoldTheSamePieceWhereThereAreFewer) {
  for (int rank = 0; rank < 6; ++rank) {
    const auto placement = shard_pieces({8, 3}, 0, 2, rank, 6);
    EXPECT_EQ(placement.range, (rank < 3 ? Range{0, 4} : Range{4, 8})) << rank;
    EXPECT_EQ(placement.copies, 3);
    EXPECT_EQ(placement.copy, rank % 3);
    EXPECT_EQ(placement.is_owned(), rank == 0 || rank == 3);
    EXPECT_EQ(shard_pieces({12, 3}, 0, 12, rank, 6).range, shard({12, 3}, 0, rank, 6).range);
  }
  EXPECT_THROW(shard_pieces({8, 3}, 0, 4, 0, 6), ShapeError);
}

TEST(OwnedRanges, LeaveOutWhatAnotherRankOwns) {
  const Range all{0, 128};
  EXPECT_EQ(owned_ranges(table_of(0, true), kUnit, all), std::vector<Range>{all});
  EXPECT_EQ(owned_ranges(table_of(1, true), kUnit, all), (std::vector<Range>{{0, 40}, {60, 64}, {69, 128}}));
  EXPECT_EQ(owned_ranges(table_of(2, true), kUnit, all), (std::vector<Range>{{0, 64}, {69, 128}}));
  EXPECT_EQ(owned_ranges(table_of(1, true), kUnit, {50, 66}), (std::vector<Range>{{60, 64}}));
  EXPECT_EQ(owned_ranges(table_of(1, true), kUnit, {45, 55}), std::vector<Range>{});
}

TEST(PartialRanges, AreThoseWhoseGradientIsOneOfSeveralTerms) {
  const auto expect = [](const std::vector<PartialRange>& found, std::vector<std::pair<Range, int>> wanted) {
    ASSERT_EQ(found.size(), wanted.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].range, wanted[i].first);
      EXPECT_EQ(found[i].copies, wanted[i].second);
    }
  };
  for (int rank = 0; rank < 4; ++rank) {  // the same on all
    expect(partial_ranges(table_of(rank, true), kUnit, {0, 128}), {{{40, 60}, 2}, {{64, 69}, 4}});
    expect(partial_ranges(table_of(rank, false), kUnit, {0, 128}), {{{40, 60}, 2}});
    expect(partial_ranges(table_of(rank, true), kUnit, {50, 66}), {{{50, 60}, 2}, {{64, 66}, 4}});
    expect(partial_ranges(table_of(rank, true), kUnit, {0, 40}), {});
  }
}

TEST(PartialRanges, OfNeighboursAreOne) {
  ParameterTable table;
  table.add_unit({.id = kUnit, .name = "norms"});
  for (const auto* name : {"a", "b", "c"})
    table.add_region(kUnit, {{.name = name, .placement = replicate({5}, 0, 2), .partial = true}});
  const auto found = partial_ranges(table, kUnit, {0, 256});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].range, (Range{0, 133}));
}

}  // namespace
}  // namespace orthant::shard
