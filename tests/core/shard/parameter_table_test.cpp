// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/shard/parameter_table.hpp>
#include <random>

namespace orthant::shard {
namespace {

FlatUnit unit(int id, std::string name) {
  FlatUnit result;
  result.id = UnitId{id};
  result.name = std::move(name);
  return result;
}

TEST(ParameterTable, FusedRegionHoldsItsPartsOneUnderTheOther) {
  ParameterTable table;
  table.add_unit(unit(3, "layers.2"));
  table.add_region(UnitId{3}, {{"first", replicate({5}), Init::ones}});
  const Region qkv = table.add_region(UnitId{3}, {{"q", shard({6, 10}, 0, 1, 2)}, {"k", shard({4, 10}, 0, 1, 2)}});
  EXPECT_EQ(qkv.offset, kRegionAlignment);
  EXPECT_EQ(qkv.shape, (Shape{5, 10}));
  const LogicalParameter& k = table.parameters()[2];
  EXPECT_EQ(k.name, "k");
  EXPECT_EQ(k.offset, kRegionAlignment + 3 * 10);
  EXPECT_EQ(k.unit, UnitId{3});
  EXPECT_EQ(table.unit(UnitId{3}).numel, kRegionAlignment + 50);
  EXPECT_EQ(table.unit(UnitId{3}).parameters, (std::vector<int>{0, 1, 2}));
}

TEST(ParameterTable, RegionsAreAlignedAndDoNotOverlap) {
  std::mt19937 random(3);
  const auto between = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  ParameterTable table;
  table.add_unit(unit(0, "embedding"));
  for (int i = 0; i < 50; ++i) {
    const int columns = between(1, 20);
    table.add_region(UnitId{0}, {{"a", shard({between(0, 9), columns}, 0, between(0, 3), 4)},
                                 {"b", replicate({between(1, 9), columns})}});
  }
  std::int64_t end = 0;
  for (const Region& region : table.unit(UnitId{0}).regions) {
    EXPECT_EQ(region.offset % kRegionAlignment, 0);
    EXPECT_GE(region.offset, end);
    end = region.offset + numel(region.shape);
  }
  EXPECT_EQ(table.unit(UnitId{0}).numel, end);
}

TEST(FlatUnit, ShardsTileThePaddedUnit) {
  for (std::int64_t n : {1, 127, 128, 129, 1000, 4096, 100003}) {
    FlatUnit flat = unit(1, "layers.0");
    flat.numel = n;
    for (int degree : {1, 2, 3, 4, 5, 8}) {
      const std::int64_t padded = flat.padded_numel(degree);
      EXPECT_EQ(flat.shard_numel(degree) * degree, padded);
      EXPECT_EQ(flat.shard_numel(degree) % kShardAlignment, 0);
      EXPECT_GE(padded, n);
      EXPECT_LT(padded - n, kShardAlignment * degree);
    }
  }
}

TEST(ParameterTable, RejectsWhatWouldCorruptIt) {
  ParameterTable table;
  table.add_unit(unit(2, "layers.1"));
  EXPECT_THROW(table.add_unit(unit(2, "again")), InternalError);
  EXPECT_THROW(table.add_region(UnitId{9}, {{"x", replicate({4})}}), InternalError);
  EXPECT_THROW(table.add_region(UnitId{2}, {{"x", replicate({4, 3})}, {"y", replicate({4, 5})}}), ShapeError);
  EXPECT_THROW(table.add_region(UnitId{2}, {{"x", replicate({4, 3})}, {"y", replicate({4})}}), ShapeError);
  EXPECT_FALSE(table.has(UnitId{9}));
}

}  // namespace
}  // namespace orthant::shard
