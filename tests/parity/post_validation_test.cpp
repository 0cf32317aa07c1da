// SPDX-License-Identifier: Apache-2.0
// Post-validation gives the barrier's bits, whether it was right to run ahead or not: without clipping, with clipping
// on every step, on some; and a step whose gradients are infinite somewhere leaves weights and moments as they were.
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <orthant/tests/parity/parity_check.hpp>

namespace orthant::tests {
namespace {

using launch::RunConfig;

struct Cell {
  const char* schedule;
  int pp;
  int dp = 1;
  int tp = 1;
  launch::FsdpConfig fsdp = {.stage = 0};
  DType precision = DType::f32;
};

const Cell kCells[] = {
    {"1f1b", 1},
    {"1f1b", 2},
    {"zb_h1", 4},
    {"zb_h2", 4},
    {"gpipe", 2},
    {"interleaved", 2},
    {"zb_v", 2},
    {"v_half", 4},
    {"dualpipe_v", 2},
    {"dualpipe", 2},
    {"zb_h1", 2, 2, 1, {.stage = 3, .residency = "chunk"}, DType::bf16},
    {"zb_v", 2, 2, 1, {.stage = 3, .residency = "chunk", .reshard_after_forward = true, .resident_stages = 1}},
    {"1f1b", 2, 2, 1, {.stage = 3, .residency = "layer"}, DType::bf16},
    {"zb_h1", 2, 2, 2, {.stage = 1}},
};

RunConfig config(const Cell& cell, double grad_clip) {
  RunConfig run;
  run.model = {.layers = 8,
               .hidden = 16,
               .heads = 4,
               .kv_heads = 4,
               .head_dim = 4,
               .ffn = 24,
               .vocab = 61,
               .tie_embeddings = true};
  run.mesh = {.pp = cell.pp, .dp = cell.dp, .tp = cell.tp};
  run.train = {.steps = 6,
               .global_batch = 2 * cell.pp * cell.dp,
               .micro_batch = 1,
               .seq_len = 8,
               .seed = 3,
               .precision = cell.precision,
               .grad_clip = grad_clip};
  run.lr = {.kind = optim::LrKind::constant, .peak = 1e-2};
  run.fsdp = cell.fsdp;
  run.pipeline.schedule = cell.schedule;
  return run;
}

Trajectory with(RunConfig run, const char* post_validation, Treatment treatment = {.wants_moments = true}) {
  run.pipeline.post_validation = post_validation;
  return run_trajectory(run, treatment);
}

void expect_same_bits(const Tensors& got, const Tensors& want, const char* what) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) EXPECT_TRUE(got.at(name).equal(tensor)) << what << " " << name;
}

std::string name_of(const Cell& cell) {
  return fmt::format("{} pp{} dp{} tp{} stage {}", cell.schedule, cell.pp, cell.dp, cell.tp, cell.fsdp.stage);
}

TEST(PostValidation, GivesTheBarriersBitsWhateverIsClipped) {
  for (const Cell& cell : kCells) {
    const auto free = with(config(cell, 0.0), "off");
    auto norms = free.norms;
    std::ranges::nth_element(norms, norms.begin() + 3);
    for (const double grad_clip : {1e9, norms[3], 1e-3}) {  // never, on some steps, on every step
      SCOPED_TRACE(fmt::format("{} clip {}", name_of(cell), grad_clip));
      const auto want = with(config(cell, grad_clip), "off"), got = with(config(cell, grad_clip), "on");
      EXPECT_EQ(got.losses, want.losses);
      EXPECT_EQ(got.norms, want.norms);
      expect_same_bits(got.final, want.final, "weights");
      expect_same_bits(got.moments, want.moments, "moments");
      if (HasFailure()) return;
    }
  }
}

TEST(PostValidation, AnInfiniteGradientOfAnyStageChangesNothing) {
  constexpr std::int64_t kStep = 3;  // 0-based
  for (const char* mode : {"on", "off"}) {
    for (const Cell& cell : {kCells[2], kCells[6], kCells[10]}) {
      for (int stage = 0; stage < cell.pp; ++stage) {
        SCOPED_TRACE(fmt::format("{} {} infinity on stage {}", name_of(cell), mode, stage));
        auto run = config(cell, 1e9);
        run.fault = {.kind = "infinity", .rank = stage * cell.dp * cell.tp, .step = kStep + 1};
        const auto got = with(run, mode);
        EXPECT_FALSE(std::isfinite(got.norms[kStep]));

        auto right = config(cell, 1e9);
        const auto want = with(right, mode, {.leave_out_step = kStep, .wants_moments = true});
        expect_same_bits(got.final, want.final, "weights");
        expect_same_bits(got.moments, want.moments, "moments");
        for (std::size_t i = kStep + 1; i < got.losses.size(); ++i) EXPECT_EQ(got.losses[i], want.losses[i - 1]);

        right.train.steps = kStep;
        run.train.steps = kStep + 1;
        const auto before = with(right, mode), after = with(run, mode);
        expect_same_bits(after.final, before.final, "weights right after");
        expect_same_bits(after.moments, before.moments, "moments right after");
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace orthant::tests
