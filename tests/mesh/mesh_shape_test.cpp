// SPDX-License-Identifier: Apache-2.0
// That coordinates round-trip and groups tile the mesh is checked at compile time, in the header.
#include <orthant/mesh/mesh_shape.hpp>

#include <gtest/gtest.h>

namespace orthant::tests {
namespace {

using mesh::Axis;
using mesh::Coordinate;
using mesh::MeshShape;

constexpr MeshShape kShape{.pp = 2, .dp_replicate = 2, .dp_shard = 3, .tp = 2};

TEST(MeshShape, CountsTensorRanksInnermostAndStagesOutermost) {
  EXPECT_EQ(kShape.size(), 24);
  EXPECT_EQ(kShape.rank_of({.tp = 1}), 1);
  EXPECT_EQ(kShape.rank_of({.dp_shard = 1}), 2);
  EXPECT_EQ(kShape.rank_of({.dp_replicate = 1}), 6);
  EXPECT_EQ(kShape.rank_of({.pp = 1}), 12);
  EXPECT_EQ(kShape.coordinate_of(23), (Coordinate{1, 1, 2, 1}));
}

TEST(MeshShape, GroupsRanksThatDifferAlongOneAxis) {
  EXPECT_EQ(kShape.group(Axis::tp, 7), (std::vector{6, 7}));
  EXPECT_EQ(kShape.group(Axis::dp_shard, 9), (std::vector{7, 9, 11}));
  EXPECT_EQ(kShape.group(Axis::dp_replicate, 9), (std::vector{3, 9}));
  EXPECT_EQ(kShape.group(Axis::dp, 9), (std::vector{1, 3, 5, 7, 9, 11}));
  EXPECT_EQ(kShape.group(Axis::pp, 9), (std::vector{9, 21}));
}

TEST(MeshShape, HasAGroupOfOneWhereTheDegreeIsOne) {
  constexpr MeshShape shape{.dp_shard = 3};
  EXPECT_EQ(shape.group(Axis::tp, 2), std::vector{2});
  EXPECT_EQ(shape.groups(Axis::pp).size(), 3U);
  EXPECT_EQ(shape.groups(Axis::dp), (std::vector<std::vector<int>>{{0, 1, 2}}));
}

}  // namespace
}  // namespace orthant::tests
