// SPDX-License-Identifier: Apache-2.0
#include <orthant/dp/buckets.hpp>

#include <gtest/gtest.h>
#include <orthant/tests/harness/plan/layer_loop.hpp>

namespace orthant::dp {
namespace {

std::vector<int> order(const std::vector<Bucket>& buckets) {
  std::vector<int> units;
  for (const auto& bucket : buckets) {
    for (const auto& member : bucket.members) units.push_back(member.unit.value);
  }
  return units;
}

TEST(Buckets, FollowTheBackwardOrderWithNormsLast) {
  const tests::NumberModel model(3, 5);
  EXPECT_EQ(order(make_buckets(model.table, 1 << 30)), (std::vector<int>{4, 3, 2, 1, 0, 5}));
  EXPECT_EQ(order(make_buckets(model.table, 1)), (std::vector<int>{4, 3, 2, 1, 0, 5}));
}

TEST(Buckets, TileTheAllocationAndKeepToTheCapacity) {
  const tests::NumberModel model(6, 50);
  for (std::int64_t capacity : {1, 256, 300, 512, 700, 1 << 20}) {
    std::int64_t end = 0;
    for (const auto& bucket : make_buckets(model.table, capacity)) {
      ASSERT_FALSE(bucket.members.empty());
      for (const auto& member : bucket.members) {
        EXPECT_EQ(member.elements.begin, end);
        EXPECT_EQ(member.elements.length(), model.table.unit(member.unit).padded_numel(1));
        end = member.elements.end;
      }
      EXPECT_TRUE(bucket.members.size() == 1 || bucket.elements().length() <= capacity);
    }
  }
}

}  // namespace
}  // namespace orthant::dp
