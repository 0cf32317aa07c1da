// SPDX-License-Identifier: Apache-2.0
// The example's model, sharded, against the same modules with plain autograd and torch::optim: losses, norms, every
// gathered gradient of every step, every gathered weight at the end.
#include <algorithm>
#include <cmath>
#include <mutex>

#include <gtest/gtest.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <orthant/core/model/tensor_span.hpp>
#include <orthant/tests/fsdp/modules/sharded_run.hpp>

namespace orthant::fsdp {
namespace {

using train::Residency;

constexpr int kSteps = 4, kSamples = 12;  // a step, over all ranks and micro-batches
constexpr double kTokens = kSamples * 6, kLr = 1e-2, kDecay = 0.1, kClip = 0.5;

struct Named {
  std::string name;
  at::Tensor value;
};

struct History {
  std::vector<double> losses = std::vector<double>(kSteps);
  std::vector<double> norms = std::vector<double>(kSteps);
  std::vector<std::vector<Named>> gradients = std::vector<std::vector<Named>>(kSteps);
  std::vector<Named> weights;
};

std::vector<Named> named(const TestModel& model) {
  std::vector<Named> result;
  for (const auto& unit : model.units()) {
    for (const auto& item : unit.module->named_parameters())
      result.push_back({unit.name + "." + item.key(), item.value()});
  }
  return result;
}

History train_whole(at::ScalarType type) {
  const TestModel model(0, type);
  std::vector<at::Tensor> parameters;
  for (const auto& [name, value] : named(model)) parameters.push_back(value);
  torch::optim::AdamW adamw(parameters,
                            torch::optim::AdamWOptions(kLr).betas({0.9, 0.95}).eps(1e-8).weight_decay(kDecay));
  History history;
  for (int step = 0; step < kSteps; ++step) {
    const auto loss = model.loss(user_model::make_batch(kSizes, step * kSamples, (step + 1) * kSamples)) / kTokens;
    adamw.zero_grad();
    loss.backward();
    history.losses[step] = loss.item<double>();
    for (const auto& [name, value] : named(model)) {
      if (!value.grad().defined()) value.mutable_grad() = at::zeros_like(value);  // none counts as zero
      history.gradients[step].push_back({name, value.grad().clone()});
    }
    history.norms[step] = torch::nn::utils::clip_grad_norm_(parameters, kClip);
    adamw.step();
  }
  for (const auto& [name, value] : named(model)) history.weights.push_back({name, value.detach().clone()});
  return history;
}

struct Case {
  int ranks = 1;
  DType precision = DType::f64;
  train::Residencies residency = {};
  int microbatches = 1;
  int announced = 1;  ///< ModulesOptions::microbatches
  int alternating = 2;
  bool keeps_weights = false;
  int shard_degree = 0;
};

/// Gathers every unit's gradient, divided, and splits it into the modules' parameters. Collective.
std::vector<Named> gather_gradients(ShardedModules& sharded, comm::Collectives& group) {
  std::vector<Named> result;
  for (const auto& shard : sharded.shards()) {
    const auto whole = at::zeros({shard.grad.numel() * group.size()}, shard.grad.options());
    group.all_gather(model::span_of(shard.grad), model::span_of(whole)).wait(std::chrono::seconds(30));
    for (const auto& [name, own, flat] : sharded.units()[shard.unit.value].parameters) {
      result.push_back({name, whole.narrow(0, flat->region.offset, own.numel()).view(own.sizes()) / kTokens});
    }
  }
  return result;
}

void train_sharded(comm::Fabric& fabric, const Case& c, History& history, std::mutex& mutex) {
  const TestModel model(fabric.rank(), model::scalar_type(c.precision));
  DataRank rank(fabric, {.shard_degree = c.shard_degree});
  ShardedModules sharded(model.units(), rank.scheduler(), rank.lanes(),
                         {.engine = {.precision = c.precision,
                                     .residency = c.residency,
                                     .keeps_weights = c.keeps_weights,
                                     .alternating_buffers = c.alternating},
                          .optimizer = {.adamw = {.weight_decay = kDecay}, .sgd = {}},
                          .grad_clip = kClip,
                          .microbatches = c.announced});
  const int count = kSamples / fabric.size() / c.microbatches;
  ASSERT_EQ(count * fabric.size() * c.microbatches, kSamples);
  for (int step = 0; step < kSteps; ++step) {
    double loss_sum = 0;
    for (int i = 0; i < c.microbatches; ++i) {
      const int begin = step * kSamples + (fabric.rank() * c.microbatches + i) * count;
      const auto loss = model.loss(sharded, user_model::make_batch(kSizes, begin, begin + count));
      loss.backward();
      loss_sum += loss.item<double>();
      for (const auto& [name, value] : named(model)) ASSERT_FALSE(value.mutable_grad().defined()) << name;
    }
    const auto report = sharded.step({.divide_by = kTokens, .lr = kLr});
    auto gradients = gather_gradients(sharded, *rank.lanes().gather.collectives);
    const std::lock_guard lock(mutex);
    history.losses[step] += loss_sum / kTokens;
    history.norms[step] = report.grad_norm;
    if (fabric.rank() == 0) history.gradients[step] = std::move(gradients);
  }
  std::vector<Named> weights;
  const at::NoGradGuard no_grad;
  for (const auto& unit : model.units()) {
    sharded.run(*unit.module, {}, [&](const Tensors&) -> Tensors {
      for (const auto& item : unit.module->named_parameters()) {
        weights.push_back({unit.name + "." + item.key(), item.value().detach().clone()});
      }
      return {};
    });
  }
  if (fabric.rank() == 0) history.weights = std::move(weights);
}

double norm_of(const std::vector<Named>& all) {
  double squares = 0;
  for (const auto& [name, value] : all) squares += value.square().sum().item<double>();
  return std::sqrt(squares);
}

/// Relative to each tensor's own norm. In fp32 a gradient that cancels to almost nothing (of a scalar) is noise: there
/// the scale is at least a thousandth of the norm of all.
void expect_close(const std::vector<Named>& found, const std::vector<Named>& wanted, double tolerance) {
  ASSERT_EQ(found.size(), wanted.size());
  const double floor = tolerance > 1e-8 ? 1e-3 * norm_of(wanted) : 0.0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_EQ(found[i].name, wanted[i].name);
    const double own = wanted[i].value.norm().item<double>();
    const double error = (found[i].value - wanted[i].value).norm().item<double>();
    EXPECT_LE(error, own == 0 ? 0.0 : tolerance * std::max(own, floor)) << wanted[i].name;
  }
}

void expect_parity(const Case& c, const History& wanted) {
  SCOPED_TRACE(testing::Message() << c.ranks << " ranks, " << c.microbatches << " micro-batches (" << c.announced
                                  << " announced), weights " << static_cast<int>(c.residency.weights) << ", gradients "
                                  << static_cast<int>(c.residency.gradients) << ", buffers " << c.alternating);
  History found;
  std::mutex mutex;
  tests::run_ranks(c.ranks, [&](comm::Fabric& fabric) { train_sharded(fabric, c, found, mutex); });
  const double tolerance = c.precision == DType::f64 ? 1e-11 : 1e-5;
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(found.losses[step], wanted.losses[step], tolerance * wanted.losses[step]);
    EXPECT_NEAR(found.norms[step], wanted.norms[step], tolerance * wanted.norms[step]);
    expect_close(found.gradients[step], wanted.gradients[step], tolerance);
  }
  expect_close(found.weights, wanted.weights, tolerance);
}

TEST(ShardedModules, TrainsAsTheSameModulesWithPlainAutograd) {
  const History whole = train_whole(at::kDouble);
  for (int ranks : {1, 2, 3}) {
    for (Residency weights : {Residency::chunk, Residency::layer}) {
      for (Residency gradients : {Residency::chunk, Residency::layer}) {
        for (int microbatches : {1, 2}) {
          expect_parity({.ranks = ranks,
                         .residency = {weights, gradients},
                         .microbatches = microbatches,
                         .announced = microbatches},
                        whole);
        }
      }
    }
  }
}

TEST(ShardedModules, TrainsInFp32) {
  const History whole = train_whole(at::kFloat);
  for (Residency residency : {Residency::chunk, Residency::layer}) {
    expect_parity({.ranks = 2, .precision = DType::f32, .residency = {residency, residency}}, whole);
  }
}

TEST(ShardedModules, Bf16WeightsBesideFp32Masters) {
  const History whole = train_whole(at::kFloat);
  tests::run_ranks(2, [&](comm::Fabric& fabric) {
    const TestModel model(fabric.rank(), at::kFloat);
    DataRank rank(fabric);
    ShardedModules sharded(model.units(), rank.scheduler(), rank.lanes(), {.engine = {.precision = DType::bf16}});
    EXPECT_EQ(model.first->gain.scalar_type(), at::kBFloat16);
    for (const auto& parameter : sharded.units()[1].parameters)
      EXPECT_TRUE(parameter.own.is_alias_of(parameter.flat->weight));
    EXPECT_EQ(sharded.shards().front().master.scalar_type(), at::kFloat);
    const auto loss = model.loss(sharded, user_model::make_batch(kSizes, 0, kSamples));
    loss.backward();
    EXPECT_NEAR(loss.item<double>() / kTokens, whole.losses[0], 0.02 * whole.losses[0]);
    EXPECT_NEAR(sharded.step({.divide_by = 2 * kTokens}).grad_norm, whole.norms[0], 0.05 * whole.norms[0]);
  });
}

TEST(ShardedModules, FewerMicrobatchesThanAnnounced) {
  const History whole = train_whole(at::kDouble);
  for (Residency gradients : {Residency::chunk, Residency::layer}) {
    expect_parity({.ranks = 2, .residency = {Residency::layer, gradients}, .microbatches = 2, .announced = 3}, whole);
  }
}

TEST(ShardedModules, OneSharedBufferAndWeightsThatStayWhole) {
  const History whole = train_whole(at::kDouble);
  expect_parity({.ranks = 3, .residency = {Residency::layer, Residency::layer}, .alternating = 1}, whole);
  expect_parity({.ranks = 2, .microbatches = 2, .announced = 2, .keeps_weights = true}, whole);
}

TEST(ShardedModules, HybridSharding) {
  const History whole = train_whole(at::kDouble);
  for (Residency residency : {Residency::chunk, Residency::layer}) {
    for (int shard_degree : {1, 2}) {
      for (int microbatches : {1, 3}) {
        expect_parity({.ranks = shard_degree * 2,
                       .residency = {residency, residency},
                       .microbatches = microbatches,
                       .announced = 3,
                       .shard_degree = shard_degree},
                      whole);
      }
    }
  }
}

}  // namespace
}  // namespace orthant::fsdp
