// SPDX-License-Identifier: Apache-2.0
// Every schedule gives one rank's gradients: each gathered gradient, per tensor, in fp64; bit for bit where the order
// of addition is one rank's. Also where it is composed with tensor and data parallelism, tied embeddings and activation
// checkpointing, and where the schedule's rule does not allow the numbers.
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/launch/pipeline_plan.hpp>
#include <orthant/pipeline/generate/catalog.hpp>
#include <orthant/tests/parity/parity_check.hpp>

namespace orthant::tests {
namespace {

using launch::RunConfig;

RunConfig config(int microbatches, int dp = 1) {
  RunConfig run;
  run.model = {.layers = 8, .hidden = 16, .heads = 4, .kv_heads = 4, .head_dim = 4, .ffn = 24, .vocab = 61};
  run.mesh.dp = dp;
  run.train = {.steps = 1,
               .global_batch = microbatches * dp,
               .micro_batch = 1,
               .seq_len = 8,
               .seed = 3,
               .precision = DType::f64};
  run.fsdp.stage = 0;
  return run;
}

/// Gradients of the first step on one rank, made once for each batch and model.
const Tensors& gradients_of_one_rank(const RunConfig& run) {
  static std::map<std::string, Tensors> made;
  auto one = run;
  one.mesh = {};
  one.pipeline = {};
  one.fsdp = {.stage = 0};
  one.train.checkpoint_activations = "none";
  auto& gradients = made[fmt::format("{} {}", one.train.global_batch, one.model.tie_embeddings)];
  if (gradients.empty()) gradients = run_trajectory(one).gradients;
  return gradients;
}

std::string rule_broken_by(const RunConfig& run) {
  return pipeline::broken_rule({.name = run.pipeline.schedule,
                                .ranks = run.mesh.pp,
                                .microbatches = static_cast<int>(run.microbatches()),
                                .chunks = run.pipeline.chunks});
}

void expect_one_ranks_gradients(const RunConfig& run, double tolerance) {
  const auto got = run_trajectory(run).gradients;
  const auto& want = gradients_of_one_rank(run);
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) EXPECT_LE(relative_difference(got.at(name), tensor), tolerance) << name;
}

class Schedules : public ::testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(All, Schedules,
                         ::testing::ValuesIn(pipeline::schedule_names().begin(), pipeline::schedule_names().end()),
                         [](const auto& schedule) {
                           const std::string name(schedule.param);
                           return std::isdigit(static_cast<unsigned char>(name[0])) ? "_" + name : name;
                         });

TEST_P(Schedules, GiveOneRanksGradientsForEveryNumberOfMicrobatches) {
  for (const int pp : {2, 4}) {
    for (int microbatches = 1; microbatches <= 2 * pp + 1; ++microbatches) {
      auto run = config(microbatches);
      run.mesh.pp = pp;
      run.pipeline.schedule = GetParam();
      SCOPED_TRACE(fmt::format("pp{} m{}", pp, microbatches));
      if (!rule_broken_by(run).empty()) {
        EXPECT_THROW(launch::plan_pipeline(run), ConfigError);
        continue;
      }
      // Two copies of the weights sum their halves last; all others add in one rank's order.
      expect_one_ranks_gradients(run, GetParam() == "dualpipe" ? 1e-12 : 0.0);
      if (HasFailure()) return;
    }
  }
}

struct Sharding {
  const char* name;
  int dp = 1;
  int tp = 1;
  launch::FsdpConfig fsdp = {.stage = 0};
};

const Sharding kShardings[] = {
    {"tp2", 1, 2},
    {"dp2 stage 0", 2, 1, {.stage = 0}},
    {"dp2 stage 1", 2, 1, {.stage = 1}},
    {"dp2 stage 3 chunk", 2, 1, {.stage = 3, .residency = "chunk"}},
    {"dp2 stage 3 layer", 2, 1, {.stage = 3, .residency = "layer"}},
    {"dp2 stage 3 reshard",
     2,
     1,
     {.stage = 3, .residency = "chunk", .reshard_after_forward = true, .resident_stages = 1}},
    {"dp2 tp2 stage 3 reshard", 2, 2, {.stage = 3, .residency = "chunk", .reshard_after_forward = true}},
};

TEST_P(Schedules, ComposeWithTensorAndDataParallelism) {
  for (const int pp : {2, 4}) {
    for (const auto& sharding : kShardings) {
      for (const bool tied : {false, true}) {
        if (pp * sharding.dp * sharding.tp > 8) continue;
        auto run = config(2 * pp, sharding.dp);
        run.mesh.pp = pp;
        run.mesh.tp = sharding.tp;
        run.fsdp = sharding.fsdp;
        run.model.tie_embeddings = tied;
        run.pipeline.schedule = GetParam();
        run.train.checkpoint_activations = tied ? "full" : "none";
        SCOPED_TRACE(fmt::format("pp{} {}{}", pp, sharding.name, tied ? ", tied, checkpointed" : ""));
        expect_one_ranks_gradients(run, 1e-12);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(Schedules, TieEmbeddingsWhereverTheirEndsAre) {
  for (const int pp : {1, 2, 4}) {
    auto run = config(2 * pp);
    run.mesh.pp = pp;
    run.model.tie_embeddings = true;
    run.pipeline.schedule = GetParam();
    if (!rule_broken_by(run).empty()) continue;
    SCOPED_TRACE(fmt::format("pp{}", pp));
    expect_one_ranks_gradients(run, 1e-12);
  }
}

TEST_P(Schedules, CheckpointActivationsWithoutAChangeOfBits) {
  auto run = config(4);
  run.mesh.pp = 2;
  run.pipeline.schedule = GetParam();
  run.train.checkpoint_activations = "full";
  expect_one_ranks_gradients(run, GetParam() == "dualpipe" ? 1e-12 : 0.0);
}

TEST(LayersPerStage, MayBeUnevenAndEmptyAtTheEnds) {
  for (const auto& blocks : {std::vector{8, 0}, {0, 8}, {3, 5}, {1, 7}}) {
    auto run = config(3);
    run.mesh.pp = 2;
    run.pipeline.schedule = "zb_h1";
    run.pipeline.layers_per_stage = blocks;
    SCOPED_TRACE(fmt::format("{} {}", blocks[0], blocks[1]));
    expect_one_ranks_gradients(run, 0.0);
  }
}

}  // namespace
}  // namespace orthant::tests
