// SPDX-License-Identifier: Apache-2.0
// The plan of a run: what it says of ranks and ties, and that ranks with different plans do not begin.
#include <orthant/launch/pipeline_plan.hpp>

#include <functional>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/stream/virtual_clock.hpp>
#include <orthant/tests/harness/run_ranks.hpp>
#include <orthant/tests/launch/first_rank.hpp>

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
  const std::function<void(PipelinePlan&)> changes[] = {
      [](PipelinePlan& plan) { std::swap(plan.training.ranks[0][2], plan.training.ranks[0][3]); },
      [](PipelinePlan& plan) { plan.checkpoints[0].recompute.mlp = true; }};
  for (const auto& change : changes)
    orthant::tests::run_ranks(2, [&](comm::Fabric& fabric) {
      stream::VirtualClock scheduler;
      const mesh::DeviceMesh mesh(fabric, scheduler, {.dp_shard = 2});
      auto mine = plan_pipeline(config("zb_h1", 1, 4));
      agree_on_plan(mine, mesh, std::chrono::seconds(30));
      if (fabric.rank() == 1) change(mine);
      try {
        agree_on_plan(mine, mesh, std::chrono::seconds(30));
        ADD_FAILURE() << "replicas on two plans";
      } catch (const InternalError& error) {
        EXPECT_NE(std::string(error.what()).find("the pipeline plan differs over control: ranks 1"), std::string::npos)
            << error.what();
      }
    });
}

/// Gathers of block units that one rank's engine submits in one step; and how many the plan has.
std::pair<int, int> gathers_of_first_rank(const RunConfig& run) {
  const auto plan = plan_pipeline(run);
  std::pair<int, int> gathers;
  for (const auto& record : records_of_first_rank(run, plan)) gathers.first += record.name.starts_with("AG layers");
  std::vector<train::StageLayout> blocks;  // as the program lays them out, without embedding, head and norms
  for (const auto& span : plan.stages_of(0)) {
    blocks.push_back({.stage = span.stage, .layers = {}});
    for (int layer = std::max(span.first.value, 1); layer <= std::min<int>(span.last.value, run.model.layers); ++layer)
      blocks.back().layers.push_back({.layer = LayerId{layer}, .main = UnitId{layer}, .alternating = true});
  }
  gathers.second = pipeline::count_gathers(pipeline::expand(plan.training.ranks[0], blocks, plan.residency));
  return gathers;
}

TEST(PipelinePlan, TheEngineGathersAsOftenAsThePlanSays) {
  // p = 4, m = 8, one block a stage: stages gathered on rank 0 with a window of 1, 2 and 3 .
  struct Case {
    const char* schedule;
    int wanted[3];
  };
  for (const Case& c : {Case{"interleaved", {11, 2, 2}}, {"zb_v", {11, 2, 2}}, {"breadth_first", {3, 2, 2}}}) {
    for (int window = 0; window <= 3; ++window) {
      SCOPED_TRACE(testing::Message() << c.schedule << " window " << window);
      auto run = config(c.schedule, 4, 16);
      run.mesh.dp = 2;
      run.fsdp = {.stage = 3, .residency = "chunk", .reshard_after_forward = window > 0, .resident_stages = window};
      const auto [engine, plan] = gathers_of_first_rank(run);
      EXPECT_EQ(engine, plan);
      EXPECT_EQ(engine, window == 0 ? 2 : c.wanted[window - 1]);
    }
  }
  auto run = config("zb_h1", 4, 16);
  run.mesh.dp = 2;
  run.fsdp = {.stage = 3, .residency = "layer"};
  const auto [engine, plan] = gathers_of_first_rank(run);
  EXPECT_EQ(engine, plan);
}

TEST(PipelinePlan, ReducesAUnitOnceAStepAfterItsLastWeightGradient) {
  for (const FsdpConfig& fsdp : {FsdpConfig{.stage = 1},
                                 {.stage = 3, .residency = "chunk"},
                                 {.stage = 3, .residency = "layer", .reduce = "last_microbatch"}}) {
    auto run = config("zb_h1", 4, 16);
    run.mesh.dp = 2;
    run.fsdp = fsdp;
    const auto records = records_of_first_rank(run, plan_pipeline(run));
    for (const std::string unit : {"embedding", "layers.0", "layers.1", "norms"}) {
      std::vector<double> reductions;
      double last_gradient = 0;
      int gradients = 0;
      for (const auto& record : records) {
        if (record.name == "RS " + unit) reductions.push_back(record.begin_us);
        const bool is_gradient = record.name.starts_with("W ") || record.name.starts_with("B ");
        if (!is_gradient || !record.name.ends_with(" " + unit)) continue;
        last_gradient = std::max(last_gradient, record.end_us);
        ++gradients;
      }
      EXPECT_EQ(reductions.size(), 1u) << unit << " in stage " << fsdp.stage;
      EXPECT_EQ(gradients, unit == "norms" ? 0 : 8) << unit;
      EXPECT_GE(reductions.at(0), last_gradient) << unit;
    }
  }
}

/// Layers that do not divide are split unevenly, and none is dropped.
TEST(PipelinePlan, HasEveryLayerOnce) {
  const auto layers_of = [](int layers, const char* schedule, int pp, int chunks) {
    auto run = config(schedule, pp, 8);
    run.model.layers = layers;
    run.pipeline.chunks = chunks;
    const auto plan = plan_pipeline(run);
    int sum = 0;
    for (int rank = 0; rank < pp; ++rank) sum += plan.blocks_of(rank, run.model);
    return sum;
  };
  EXPECT_EQ(layers_of(6, "1f1b", 4, 0), 6);
  EXPECT_EQ(layers_of(7, "interleaved", 2, 2), 7);
  EXPECT_EQ(layers_of(30, "zb_h1", 4, 0), 30);
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
