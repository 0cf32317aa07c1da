// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism trains like one rank, whatever else is on: key/value heads that ranks share, norms of queries and
// keys, dropout, tied weights, vocabularies that nothing divides, every kind of schedule, both data-parallel engines.
// What several ranks hold stays the same on all of them, bit for bit.
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/tests/parity/sharding_config.hpp>
#include <orthant/tp/sharded_factory.hpp>

namespace orthant::tests {
namespace {

using launch::RunConfig;

RunConfig tensor_config(std::int64_t kv_heads, bool tied) {
  RunConfig run;
  run.model = {.layers = 4,
               .hidden = 20,
               .heads = 24,
               .kv_heads = kv_heads,
               .head_dim = 2,
               .ffn = 24,
               .vocab = 97,
               .tie_embeddings = tied,
               .dropout = 0.1,
               .z_loss = 1e-3,
               .loss_rows = kv_heads == 2 ? 10 : 0,
               .qk_norm = true};
  run.train = {.steps = 3, .global_batch = 8, .micro_batch = 1, .seq_len = 24, .seed = 11, .precision = DType::f64};
  // Higher, and AdamW blows up rounding, which is another on every processor, to more than the bound.
  run.lr = {.kind = optim::LrKind::constant, .peak = 1e-3};
  return run;
}

/// On one rank; made once for each model.
const Trajectory& one_rank(const RunConfig& run) {
  static std::map<std::pair<std::int64_t, bool>, Trajectory> known;
  const auto [at, is_new] = known.try_emplace({run.model.kv_heads, run.model.tie_embeddings});
  if (is_new) at->second = run_trajectory(alone(run));
  return at->second;
}

class TensorParallel : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Degrees, TensorParallel, ::testing::Values(1, 2, 3, 4, 8),
                         [](const auto& degree) { return fmt::format("Tp{}", degree.param); });

// Of the models, each cell has one in turn.
TEST_P(TensorParallel, TrainsLikeOneRankWithEveryScheduleAndSharding) {
  std::vector<RunConfig> models;
  for (const std::int64_t kv_heads : {1, 2, 3, 24}) {
    if (!tp::cuts_heads(24, kv_heads, GetParam())) continue;
    for (const bool tied : {false, true}) models.push_back(tensor_config(kv_heads, tied));
  }
  std::size_t cell = 0;
  for (const bool sequence_parallel : {false, true}) {
    for (const auto* schedule : {"1f1b", "zb_h1", "zb_v"}) {
      for (const int dp : {1, 2}) {
        for (const int stage : {0, 3}) {
          auto run = models[cell++ % models.size()];
          const auto& want = one_rank(run);
          run.mesh = {
              .pp = std::string(schedule) == "zb_v" ? 2 : 1 + static_cast<int>(cell % 2), .dp = dp, .tp = GetParam()};
          run.sequence_parallel = sequence_parallel;
          run.pipeline.schedule = schedule;
          run.fsdp = {.stage = stage, .residency = stage == 3 && cell % 3 == 0 ? "layer" : "auto"};
          SCOPED_TRACE(fmt::format("kv_heads {} {} sequence_parallel {} {} pp{} dp{} stage {}", run.model.kv_heads,
                                   run.model.tie_embeddings ? "tied" : "untied", sequence_parallel, schedule,
                                   run.mesh.pp, dp, stage));
          expect_parity(run_trajectory(run, {.checks_replicas = true}), want, kFp64);
        }
      }
    }
  }
}

// NVIDIA/Megatron-LM#7452, finding 11: a norm that every rank applies to its own heads has one term of its gradient on
// each, with sequence parallelism or without.
TEST(PeersBugs, NormsOfQueriesAndKeysStayTheSameOnAllRanksOver20Steps) {
  auto run = tensor_config(24, false);
  run.train.steps = 20;
  const auto want = run_trajectory(alone(run));
  run.mesh.tp = 2;
  for (const bool sequence_parallel : {false, true}) {
    SCOPED_TRACE(sequence_parallel);
    run.sequence_parallel = sequence_parallel;
    expect_parity(run_trajectory(run, {.checks_replicas = true}), want, kFp64);
  }
}

// pytorch/pytorch#180952: a weight that is used twice on one stage under a split backward.
TEST(PeersBugs, AWeightUsedTwiceOnAStageIsAccumulatedOnceUnderASplitBackward) {
  auto run = tensor_config(24, true);
  run.model.dropout = 0;
  const auto want = run_trajectory(alone(run));
  for (const auto* schedule : {"gpipe", "1f1b", "zb_h1", "zb_v"}) {
    for (const int tp : {1, 2}) {
      SCOPED_TRACE(fmt::format("{} tp{}", schedule, tp));
      run.pipeline.schedule = schedule;
      run.mesh = {.pp = std::string(schedule) == "zb_v" ? 2 : 1, .tp = tp};  // a V has embedding and head on one rank
      expect_parity(run_trajectory(run), want, {1e-12, 1e-11});
    }
  }
}

// NVIDIA/Megatron-LM#6858: random numbers belong to elements, not to ranks, so there is no state that a rank could get
// from another.
TEST(PeersBugs, DropoutIsTheSameOnEveryMeshAndNotTheSameInEveryStepOrLayer) {
  auto run = tensor_config(24, false);
  run.train.steps = 2;
  const auto with = run_trajectory(alone(run));
  run.mesh = {.pp = 2, .dp = 2, .tp = 2};
  const auto first = run_trajectory(run), again = run_trajectory(run);
  expect_bit_equal(first, again);
  expect_parity(first, with, kFp64);
  run.train.seed = 12;
  run.model.dropout = 0;
  const auto without = run_trajectory(alone(run));
  EXPECT_NE(with.losses, without.losses);
}

TEST(TensorParallel, TrainsLikeOneRankWithAVocabularyOf50257) {
  auto run = tensor_config(2, true);
  run.model.layers = 1;
  run.model.vocab = 50257;
  run.train.steps = 1;
  const auto want = run_trajectory(alone(run));
  run.mesh.tp = 4;
  expect_parity(run_trajectory(run, {.checks_replicas = true}), want, kFp64);
}

TEST(TensorParallel, TrainsLikeOneRankInFp32) {
  auto run = tensor_config(2, false);
  run.train.precision = DType::f32;
  const auto want = run_trajectory(alone(run));
  run.mesh = {.pp = 2, .tp = 4};
  run.pipeline.schedule = "zb_h1";
  expect_parity(run_trajectory(run, {.checks_replicas = true}), want, {2e-5, 1e-4});
}

}  // namespace
}  // namespace orthant::tests
