// SPDX-License-Identifier: Apache-2.0
// The ZeRO ladder and hybrid sharding train like one rank: every gathered gradient, losses, norms and weights.
#include <map>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <orthant/tests/parity/sharding_config.hpp>

namespace orthant::tests {
namespace {

const Trajectory& one_rank(const launch::RunConfig& run) {
  static std::map<std::pair<std::int64_t, bool>, Trajectory> made;
  auto& trajectory = made[{run.train.global_batch, run.model.tie_embeddings}];
  if (trajectory.losses.empty()) trajectory = run_trajectory(alone(run));
  return trajectory;
}

void expect_one_rank(const launch::RunConfig& run, const std::string& what) {
  SCOPED_TRACE(fmt::format("pp{} dp{}/{} tp{} {} batch {} {}", run.mesh.pp, run.mesh.dp, run.mesh.dp_shard, run.mesh.tp,
                           what, run.train.global_batch, run.model.tie_embeddings ? "tied" : "untied"));
  expect_parity(run_trajectory(run), one_rank(run), kFp64);
}

class OverDp : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Degrees, OverDp, ::testing::Values(2, 3, 4, 5));

TEST_P(OverDp, EveryRungWithAndWithoutAccumulation) {
  for (const Ladder& rung : kLadder) {
    for (const int microbatches : {1, 3}) {
      auto run = sharding_config(GetParam(), microbatches);
      run.model.tie_embeddings = microbatches == 3;
      run.fsdp = rung.fsdp;
      expect_one_rank(run, rung.name);
      if (HasFailure()) return;
    }
  }
}

struct HybridMesh {
  int pp, dp, dp_shard, tp;
};

TEST(Hybrid, EveryRungInShardGroupsAndReplicas) {
  for (const auto& [pp, dp, dp_shard, tp] :
       {HybridMesh{1, 4, 2, 1}, {1, 4, 1, 1}, {1, 6, 3, 1}, {2, 4, 2, 1}, {1, 4, 2, 2}, {2, 2, 1, 2}}) {
    for (const Ladder& rung : kLadder) {
      if (rung.fsdp.stage == 0) continue;
      auto run = sharding_config(dp, 3);
      run.mesh = {.pp = pp, .dp = dp, .tp = tp, .dp_shard = dp_shard};
      run.pipeline.schedule = pp > 1 ? "zb_h1" : "1f1b";
      run.model.tie_embeddings = rung.fsdp.stage == 3;
      run.fsdp = rung.fsdp;
      expect_one_rank(run, rung.name);
      if (HasFailure()) return;
    }
  }
}

TEST(Ladder, ComposesWithPipelineAndTensorParallelism) {
  for (const auto& [pp, dp, dp_shard, tp] : {HybridMesh{2, 2, 2, 2}, {2, 3, 3, 1}, {1, 3, 3, 2}}) {
    for (const Ladder& rung : kLadder) {
      auto run = sharding_config(dp, 3);
      run.mesh = {.pp = pp, .dp = dp, .tp = tp, .dp_shard = dp_shard};
      run.pipeline.schedule = pp > 1 ? "zb_h1" : "1f1b";
      run.model.tie_embeddings = rung.fsdp.stage % 2 == 1;
      run.fsdp = rung.fsdp;
      expect_one_rank(run, rung.name);
      if (HasFailure()) return;
    }
  }
}

/// bf16 has 8 bits: what each rank adds is rounded by at most 1 in 512.
TEST(NarrowWire, IsWithinBf16ErrorOfFp64) {
  for (const Ladder& rung : kLadder) {
    if (rung.fsdp.stage == 0) continue;
    for (const int dp_shard : {2, 4}) {
      auto run = sharding_config(4, 3, DType::f32);
      run.mesh.dp_shard = dp_shard;
      run.fsdp = rung.fsdp;
      run.fsdp.reduce_dtype = DType::bf16;
      SCOPED_TRACE(rung.name);
      const auto got = run_trajectory(run);
      const auto& want = one_rank(sharding_config(4, 3));
      double largest = 0;
      for (const auto& [name, gradient] : want.gradients) {
        const double difference = relative_difference(got.gradients.at(name), gradient);
        EXPECT_LT(difference, 1.0 / 256) << name;
        largest = std::max(largest, difference);
      }
      EXPECT_GT(largest, 1e-4) << "nothing was rounded: did fp32 travel?";
      for (std::size_t step = 0; step < want.losses.size(); ++step)
        EXPECT_NEAR(got.losses[step], want.losses[step], 1e-3);
    }
  }
}

TEST(Moments, InBf16TrainCloseToFp32) {
  auto run = sharding_config(2, 1, DType::f32);
  run.train.steps = 10;
  run.fsdp = {.stage = 3, .residency = "layer"};
  const auto wide = run_trajectory(run);
  run.moments = DType::bf16;
  const auto narrow = run_trajectory(run);
  EXPECT_NE(narrow.losses.back(), wide.losses.back());
  EXPECT_NEAR(narrow.losses.back(), wide.losses.back(), 1e-2);
}

TEST(ParameterGroups, AreTheSameOnEveryMesh) {
  auto run = sharding_config(2, 2);
  run.groups[static_cast<std::size_t>(shard::UnitKind::embedding)] = {.lr_scale = 0.1, .weight_decay = 0.0};
  run.groups[static_cast<std::size_t>(shard::UnitKind::norms)] = {.lr_scale = 2.0, .weight_decay = 0.3};
  const auto want = run_trajectory(alone(run));
  EXPECT_NE(want.losses.back(), run_trajectory(alone(sharding_config(2, 2))).losses.back());
  run.mesh.pp = 2;
  run.fsdp = {.stage = 2};
  expect_parity(run_trajectory(run), want, kFp64);
}

}  // namespace
}  // namespace orthant::tests
