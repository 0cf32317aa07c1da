// SPDX-License-Identifier: Apache-2.0
// Public bug reports of other trainers' data parallelism as tests: the input that went wrong there, and one rank's
// result.
#include <gtest/gtest.h>

#include <orthant/tests/parity/sharding_config.hpp>

namespace orthant::tests {
namespace {

using launch::RunConfig;

RunConfig with_sgd(RunConfig run, int steps, double lr) {
  run.train.steps = steps;
  run.train.grad_clip = 0;
  run.lr.peak = lr;
  run.optimizer.kind = optim::OptimizerKind::sgd;
  run.optimizer.sgd.weight_decay = 0;
  return run;
}

/// NVIDIA/Megatron-LM#844: the tied embedding's two copies lie at different places of their flat buffers; and #7227:
/// the norm counts it once (clipping is on in the second run).
TEST(TiedEmbedding, GetsOneGradientAndCountsOnceOverPipelineAndShards) {
  for (const int tp : {1, 2}) {
    for (const Ladder& rung : kLadder) {
      for (const double clip : {0.0, 0.1}) {
        auto run = with_sgd(sharding_config(2, 2), 2, 1.0);
        run.train.grad_clip = clip;
        run.model.tie_embeddings = true;
        const auto want = run_trajectory(alone(run));
        run.mesh = {.pp = 2, .dp = 2, .tp = tp};
        run.fsdp = rung.fsdp;
        SCOPED_TRACE(fmt::format("{} tp{} clip {}", rung.name, tp, clip));
        expect_parity(run_trajectory(run), want, kFp64);
        if (HasFailure()) return;
      }
    }
  }
}

/// pytorch/torchtitan#1733: 12 sequences as 12 micro-batches of 1, 3 of 4, over one rank and two stages.
TEST(Accumulation, GivesTheSameGradientsHoweverABatchIsCut) {
  auto run = sharding_config(1, 12);
  const auto want = run_trajectory(alone(run));
  for (const int pp : {1, 2}) {
    for (const std::int64_t micro_batch : {1, 4, 12}) {
      for (const Ladder& rung : kLadder) {
        run.mesh.pp = pp;
        run.train.micro_batch = micro_batch;
        run.fsdp = rung.fsdp;
        SCOPED_TRACE(fmt::format("{} pp{} micro-batch {}", rung.name, pp, micro_batch));
        expect_parity(run_trajectory(run), want, {1e-12, 1e-10});
      }
    }
  }
}

/// pytorch/torchtitan#1842: one valid token on the first rank, all on the second, a micro-batch without any.
TEST(IgnoredLabels, AreLeftOutOfTheMeanOverAllRanks) {
  const auto ignored = [](std::int64_t sample, std::int64_t at) {
    const auto of_step = sample % 4;  // dp rank 0 has samples 0 and 1
    return of_step == 1 || (of_step == 0 && at != 3);
  };
  auto run = sharding_config(2, 2);
  const auto want = run_trajectory(alone(run), {.ignored = ignored});
  for (const Ladder& rung : kLadder) {
    run.fsdp = rung.fsdp;
    SCOPED_TRACE(rung.name);
    expect_parity(run_trajectory(run, {.ignored = ignored}), want, kFp64);
  }
}

/// No valid token at all: loss, norm and gradients are zero, nothing is 0/0.
TEST(IgnoredLabels, MayBeAll) {
  auto run = sharding_config(2, 2);
  run.optimizer.adamw.weight_decay = 0;
  run.fsdp = {.stage = 3, .residency = "layer"};
  const auto got = run_trajectory(run, {.ignored = [](std::int64_t, std::int64_t) { return true; }});
  for (std::size_t step = 0; step < got.losses.size(); ++step) {
    EXPECT_EQ(got.losses[step], 0);
    EXPECT_EQ(got.norms[step], 0);
  }
  for (const auto& [name, weight] : got.final) EXPECT_TRUE(weight.equal(got.initial.at(name))) << name;
}

/// deepspeedai/DeepSpeed#7985: only the last micro-batch of the second rank has a gradient.
TEST(LastMicrobatch, IsPartOfTheReduction) {
  const auto ignored = [](std::int64_t sample, std::int64_t) { return sample % 8 != 7; };
  for (const std::int64_t micro_batch : {1, 2, 4}) {
    auto run = with_sgd(sharding_config(2, 4, DType::f32), 2, 0.1);
    run.train.micro_batch = micro_batch;
    const auto want = run_trajectory(alone(run), {.ignored = ignored});
    EXPECT_GT(want.norms[0], 0);
    for (const Ladder& rung : kLadder) {
      run.fsdp = rung.fsdp;
      SCOPED_TRACE(fmt::format("{} micro-batch {}", rung.name, micro_batch));
      expect_parity(run_trajectory(run, {.ignored = ignored}), want, {1e-5, 1e-5});
    }
  }
}

/// pytorch/pytorch#176076: rows of a tied matrix that lie on the last rank of an uneven cut; and slices that hold
/// nothing but padding (5 ranks, norms of 4 elements).
TEST(UnevenShards, UpdateEveryRowOfATiedMatrix) {
  for (const int dp : {3, 5}) {
    for (const Ladder& rung : kLadder) {
      auto run = with_sgd(sharding_config(dp, 1), 5, 0.5);
      run.model.tie_embeddings = true;
      if (dp == 5)
        run.model = {.layers = 2,
                     .hidden = 4,
                     .heads = 2,
                     .kv_heads = 1,
                     .head_dim = 2,
                     .ffn = 3,
                     .vocab = 7,
                     .tie_embeddings = true};
      const auto want = run_trajectory(alone(run));
      run.fsdp = rung.fsdp;
      SCOPED_TRACE(fmt::format("{} dp{}", rung.name, dp));
      const auto got = run_trajectory(run);
      expect_parity(got, want, kFp64);
      const auto& before = got.initial.at("model.embed_tokens.weight");
      const auto& after = got.final.at("model.embed_tokens.weight");
      for (std::int64_t row = 0; row < before.size(0); ++row) EXPECT_FALSE(after[row].equal(before[row])) << row;
    }
  }
}

}  // namespace
}  // namespace orthant::tests
