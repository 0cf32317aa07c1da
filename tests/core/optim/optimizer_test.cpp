// SPDX-License-Identifier: Apache-2.0
// The oracle is LibTorch's own optimizer, run beside ours.
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <orthant/core/base/dtype.hpp>
#include <orthant/core/base/error.hpp>
#include <orthant/core/optim/optimizer.hpp>

namespace orthant::optim {
namespace {

at::Tensor random(std::int64_t n, at::ScalarType type) { return at::randn({n}, at::kDouble).to(type); }

ShardState state(const at::Tensor& master) {
  ShardState shard;
  shard.master = master.clone();
  shard.weight = shard.master;
  shard.grad = at::zeros_like(master);
  shard.exp_avg = at::zeros_like(master);
  shard.exp_avg_sq = at::zeros_like(master);
  return shard;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kDouble) - b.to(at::kDouble)).norm() / b.to(at::kDouble).norm()).item<double>();
}

/// Twelve steps of ours and LibTorch's on the same gradients; returns the relative distance of the weights.
template <class TorchOptimizer, class TorchOptions>
double drift(Optimizer& ours, const TorchOptions& options, at::ScalarType type, bool decays) {
  const auto start = random(1003, type);
  ShardState shard = state(start);
  shard.decays = decays;
  auto parameter = start.clone().set_requires_grad(true);
  TorchOptimizer theirs(std::vector<at::Tensor>{parameter}, options);
  for (int step = 1; step <= 12; ++step) {
    shard.grad.copy_(random(1003, type));
    const double grad_scale = 0.125 * step;
    parameter.mutable_grad() = shard.grad * grad_scale;
    theirs.step();
    ours.step(shard, 1e-2, grad_scale);
  }
  return distance(shard.master, parameter.detach());
}

TEST(AdamW, AgreesWithPyTorch) {
  for (bool decays : {true, false}) {
    const double decay = decays ? 0.1 : 0.0;
    const auto theirs = torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).eps(1e-8).weight_decay(decay);
    auto ours = make_optimizer({.kind = OptimizerKind::adamw, .adamw = {.weight_decay = 0.1}, .sgd = {}});
    EXPECT_LT(drift<torch::optim::AdamW>(*ours, theirs, at::kDouble, decays), 1e-13);
    EXPECT_LT(drift<torch::optim::AdamW>(*ours, theirs, at::kFloat, decays), 1e-6);
  }
}

TEST(Sgd, AgreesWithPyTorch) {
  for (double momentum : {0.0, 0.9}) {
    for (bool decays : {true, false}) {
      const auto theirs = torch::optim::SGDOptions(1e-2).momentum(momentum).weight_decay(decays ? 0.1 : 0.0);
      auto ours =
          make_optimizer({.kind = OptimizerKind::sgd, .adamw = {}, .sgd = {.momentum = momentum, .weight_decay = 0.1}});
      EXPECT_LT(drift<torch::optim::SGD>(*ours, theirs, at::kDouble, decays), 1e-13);
      EXPECT_LT(drift<torch::optim::SGD>(*ours, theirs, at::kFloat, decays), 1e-6);
    }
  }
}

TEST(AdamW, AnElementsBitsDependNeitherOnItsOffsetNorOnTheCount) {
  for (auto type : {at::kFloat, at::kDouble}) {
    const std::int64_t n = 200;
    ShardState whole = state(random(n, type));
    whole.grad.copy_(random(n, type));
    whole.exp_avg.copy_(random(n, type));
    whole.exp_avg_sq.copy_(random(n, type).square());
    whole.updates = 2;
    for (std::int64_t offset = 0; offset < 64; ++offset) {
      for (std::int64_t count : {std::int64_t{1}, 5 + offset % 32, n - offset}) {
        ShardState expected = whole, part = whole;
        for (at::Tensor ShardState::*tensor :
             {&ShardState::master, &ShardState::grad, &ShardState::exp_avg, &ShardState::exp_avg_sq}) {
          expected.*tensor = (whole.*tensor).clone();
          part.*tensor = (whole.*tensor).clone().narrow(0, offset, count);
        }
        expected.weight = expected.master;
        part.weight = part.master;
        adamw_step(expected, {}, 0.7);
        adamw_step(part, {}, 0.7);
        EXPECT_TRUE(part.master.equal(expected.master.narrow(0, offset, count)));
        EXPECT_TRUE(part.exp_avg.equal(expected.exp_avg.narrow(0, offset, count)));
        EXPECT_TRUE(part.exp_avg_sq.equal(expected.exp_avg_sq.narrow(0, offset, count)));
      }
    }
  }
}

TEST(AdamW, WritesBf16WeightsRoundedToNearestEven) {
  ShardState shard = state(random(1003, at::kFloat));
  shard.weight = at::zeros_like(shard.master, at::kBFloat16);
  shard.grad.copy_(random(1003, at::kFloat));
  adamw_step(shard, {}, 1.0);
  const float* master = shard.master.const_data_ptr<float>();
  const auto* weight = shard.weight.const_data_ptr<at::BFloat16>();
  for (int i = 0; i < 1003; ++i) EXPECT_EQ(weight[i].x, float_to_bf16(master[i])) << i;

  // Halfway cases, which only "to even" decides: a step of rate 0 rounds the master as it stands.
  ShardState ties = state(random(2, at::kFloat));
  ties.weight = at::zeros_like(ties.master, at::kBFloat16);
  ties.master[0] = 1.00390625f;  // between 0x3f80 and 0x3f81
  ties.master[1] = 1.01171875f;  // between 0x3f81 and 0x3f82
  sgd_step(ties, {.lr = 0.0}, 1.0);
  EXPECT_EQ(ties.weight.const_data_ptr<at::BFloat16>()[0].x, 0x3f80);
  EXPECT_EQ(ties.weight.const_data_ptr<at::BFloat16>()[1].x, 0x3f82);
}

/// The same step with fp32 moments that are rounded after it: what bf16 moments are to give, bit for bit.
TEST(AdamW, Bf16MomentsAreRoundedOnceAStep) {
  ShardState narrow = state(random(1003, at::kFloat)), wide = narrow;
  narrow.master = wide.master.clone();
  narrow.weight = narrow.master;
  narrow.exp_avg = at::zeros_like(narrow.master, at::kBFloat16);
  narrow.exp_avg_sq = at::zeros_like(narrow.master, at::kBFloat16);
  for (int step = 0; step < 5; ++step) {
    narrow.grad.copy_(random(1003, at::kFloat));
    wide.grad = narrow.grad;
    adamw_step(narrow, {}, 0.5);
    adamw_step(wide, {}, 0.5);
    EXPECT_TRUE(narrow.master.equal(wide.master)) << step;
    for (auto* moment : {&wide.exp_avg, &wide.exp_avg_sq}) moment->copy_(moment->to(at::kBFloat16));
    EXPECT_TRUE(narrow.exp_avg.equal(wide.exp_avg.to(at::kBFloat16))) << step;
    EXPECT_TRUE(narrow.exp_avg_sq.equal(wide.exp_avg_sq.to(at::kBFloat16))) << step;
  }
}

TEST(Optimizer, AGroupHasItsOwnRateAndDecay) {
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd}) {
    OptimizerOptions options{.kind = kind, .adamw = {.weight_decay = 0.3}, .sgd = {.weight_decay = 0.3}};
    const auto general = make_optimizer(options);
    options.adamw.weight_decay = options.sgd.weight_decay = 0.05;
    const auto special = make_optimizer(options);
    ShardState grouped = state(random(77, at::kFloat)), plain = grouped;
    plain.master = grouped.master.clone();
    plain.weight = plain.master;
    plain.exp_avg = grouped.exp_avg.clone();
    plain.exp_avg_sq = grouped.exp_avg_sq.clone();
    grouped.lr_scale = 0.25;
    grouped.weight_decay = 0.05;
    general->step(grouped, 4e-2, 1.0);
    special->step(plain, 1e-2, 1.0);
    EXPECT_TRUE(grouped.master.equal(plain.master));
  }
}

TEST(Optimizer, RejectsTensorsThatDoNotFitTogether) {
  ShardState shard = state(random(8, at::kFloat));
  shard.grad = random(7, at::kFloat);
  EXPECT_THROW(adamw_step(shard, {}, 1.0), ShapeError);
  shard.grad = random(8, at::kDouble);
  EXPECT_THROW(sgd_step(shard, {}, 1.0), ShapeError);
  shard.grad = random(8, at::kFloat);
  shard.weight = random(8, at::kDouble);
  EXPECT_THROW(adamw_step(shard, {}, 1.0), ShapeError);
}

}  // namespace
}  // namespace orthant::optim
