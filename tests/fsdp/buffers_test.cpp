// SPDX-License-Identifier: Apache-2.0
#include <orthant/fsdp/buffers.hpp>

#include <gtest/gtest.h>
#include <orthant/core/base/error.hpp>
#include <orthant/tests/harness/plan/layer_loop.hpp>

namespace orthant::fsdp {
namespace {

using train::Residency;

TEST(PlanBuffers, ChunkGivesEveryUnitItsOwn) {
  const tests::NumberModel model(3, 5);
  const auto plans = plan_buffers(model.table, Residency::chunk, 2, 3);
  ASSERT_EQ(plans.size(), model.table.units().size());
  for (const auto& plan : plans) EXPECT_EQ(plan.units.size(), 1u);
}

TEST(PlanBuffers, LayerLetsBlocksTakeTurnsInExactlyTwo) {
  const tests::NumberModel model(5, 5);
  const auto plans = plan_buffers(model.table, Residency::layer, 2, 3);
  ASSERT_EQ(plans.size(), 5u);  // embedding, head, norms, and two for five blocks
  EXPECT_EQ(plans[3].units, (std::vector<UnitId>{UnitId{1}, UnitId{3}, UnitId{5}}));
  EXPECT_EQ(plans[4].units, (std::vector<UnitId>{UnitId{2}, UnitId{4}}));
}

TEST(PlanBuffers, ASharedBufferIsAsLargeAsTheLargestOfItsUnits) {
  tests::NumberModel model(3, 5);
  model.table.add_region(UnitId{3}, {{"extra", shard::replicate({500})}});
  const auto plans = plan_buffers(model.table, Residency::layer, 2, 2);
  EXPECT_EQ(plans[3].numel, model.table.unit(UnitId{3}).padded_numel(2));
  EXPECT_EQ(plans[4].numel, model.table.unit(UnitId{2}).padded_numel(2));
  EXPECT_LT(plans[4].numel, plans[3].numel);
}

TEST(Gaps, CoverWhatRegionsDoNot) {
  const tests::NumberModel model(1, 50);
  const auto& block = model.table.unit(UnitId{1});  // regions [0, 150) and [192, 242)
  EXPECT_EQ(gaps(block, 384), (std::vector<shard::Range>{{150, 192}, {242, 384}}));
  EXPECT_EQ(gaps(block, 242), (std::vector<shard::Range>{{150, 192}}));
}

}  // namespace
}  // namespace orthant::fsdp
