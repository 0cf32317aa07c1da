// SPDX-License-Identifier: Apache-2.0
// The plan of a run: what it says of ranks and ties, and that ranks with different plans do not begin.
#include <orthant/launch/pipeline_plan.hpp>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/stream/virtual_clock.hpp>
#include <orthant/tests/harness/run_ranks.hpp>

namespace orthant::launch {
namespace {

RunConfig config(const char* schedule, int pp, int microbatches) {
  RunConfig run;
  run.model = {.layers = 8, .hidden = 16, .heads = 4, .kv_heads = 4, .head_dim = 4, .ffn = 24, .vocab = 61};
  run.mesh.pp = pp;
  run.train.global_batch = microbatches;
  run.pipeline.schedule = schedule;
  return run;
}

TEST(PipelinePlan, TiesTheEndsOfALoopNothingOfAVAndEveryRankOfAMirror) {
  using Ties = std::vector<std::vector<int>>;
  EXPECT_EQ(plan_pipeline(config("1f1b", 4, 8)).topology(true).ties, (Ties{{0, 3}}));
  EXPECT_EQ(plan_pipeline(config("1f1b", 4, 8)).topology(false).ties, Ties{});
  EXPECT_EQ(plan_pipeline(config("zb_v", 4, 8)).topology(true).ties, Ties{});
  EXPECT_EQ(plan_pipeline(config("dualpipe", 4, 8)).topology(false).ties, (Ties{{0, 3}, {1, 2}}));
}

TEST(PipelinePlan, RanksWithDifferentPlansDoNotBegin) {
  orthant::tests::run_ranks(2, [](comm::Fabric& fabric) {
    stream::VirtualClock scheduler;
    const mesh::DeviceMesh mesh(fabric, scheduler, {.dp_shard = 2});
    auto mine = plan_pipeline(config("zb_h1", 1, 4));
    agree_on_plan(mine, mesh, std::chrono::seconds(30));
    if (fabric.rank() == 1) std::swap(mine.training.ranks[0][2], mine.training.ranks[0][3]);
    try {
      agree_on_plan(mine, mesh, std::chrono::seconds(30));
      ADD_FAILURE() << "replicas on two plans";
    } catch (const InternalError& error) {
      EXPECT_NE(std::string(error.what()).find("the pipeline plan differs over control: ranks 1"), std::string::npos)
          << error.what();
    }
  });
}

TEST(PipelinePlan, RejectsLayersThatDoNotFitTheStages) {
  auto run = config("interleaved", 4, 8);
  run.pipeline.chunks = 4;
  EXPECT_THROW(plan_pipeline(run), ConfigError) << "8 layers, 16 stages";
  run = config("1f1b", 4, 8);
  run.pipeline.layers_per_stage = {2, 2, 2, 3};
  EXPECT_THROW(plan_pipeline(run), ConfigError) << "9 layers of 8";
  run.pipeline.layers_per_stage = {0, 4, 4, 0};
  EXPECT_NO_THROW(plan_pipeline(run)) << "embedding and head alone";
  run.pipeline.layers_per_stage = {4, 0, 4, 0};
  EXPECT_THROW(plan_pipeline(run), ConfigError) << "a stage without a layer";
}

}  // namespace
}  // namespace orthant::launch
