// SPDX-License-Identifier: Apache-2.0
// Where a block's dropout comes from: another mask in every step, layer and place and for every sample, none in
// validation. (That it is the same on every mesh is parity's to show.)
#include <set>
#include <vector>

#include <ATen/ops/linspace.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <orthant/core/model/dense_factory.hpp>
#include <orthant/core/step/llama_program.hpp>

namespace orthant::step {
namespace {

/// Dense layers post nothing.
struct NoScope final : stream::TaskScope {
  void post(std::function<stream::Work()>) override { FAIL() << "a collective of one rank"; }
  void wait(int) override { FAIL() << "a collective of one rank"; }
};

struct Setting {
  double rate = 0.5;
  int layer = 1;
  std::uint64_t seed = 5;
  std::int64_t first_sample = 0;
};

/// What the block makes of the same input with the same weights.
std::vector<float> forward(const Setting& setting, const StepInput& input) {
  const model::ModelConfig config{.layers = 2,
                                  .hidden = 16,
                                  .heads = 2,
                                  .kv_heads = 2,
                                  .head_dim = 8,
                                  .ffn = 24,
                                  .vocab = 11,
                                  .dropout = setting.rate};
  shard::ParameterTable table;
  model::ParameterStore store;
  model::DenseFactory factory(config, {table, store});
  const LayerId layer{setting.layer};
  LlamaProgram program({.model = config,
                        .rows = {.seq = 4, .batch = 2},
                        .stages = {{StageId{0}, layer, layer}},
                        .seed = setting.seed,
                        .first_sample = [&](MicrobatchId) { return setting.first_sample; }},
                       factory, {table, store}, {});
  for (const auto& unit : table.units()) store.bind(unit.id, at::linspace(-1, 1, unit.numel), at::zeros({unit.numel}));
  program.begin(input);
  const auto held = program.make_input(train::Payload::activation, StageId{0}, MicrobatchId{0});
  auto* const values = static_cast<float*>(held.span.data);
  for (std::int64_t i = 0; i < held.span.count; ++i) values[i] = static_cast<float>(i % 7) - 3;
  NoScope scope;
  program.run({.phase = Phase::forward, .stage = StageId{0}, .layer = layer, .microbatch = MicrobatchId{0}}, scope);
  const auto out = program.take_output(train::Payload::activation, StageId{0}, MicrobatchId{0});
  const auto* const made = static_cast<const float*>(out.span.data);
  return {made, made + out.span.count};
}

TEST(Dropout, IsAnotherInEveryStepLayerSampleAndRunAndTheSameWhenMadeAgain) {
  const auto first = forward({}, {.step = 3});
  EXPECT_EQ(forward({}, {.step = 3}), first);
  EXPECT_NE(forward({}, {.step = 4}), first);
  EXPECT_NE(forward({.layer = 2}, {.step = 3}), first);
  EXPECT_NE(forward({.seed = 6}, {.step = 3}), first);
  EXPECT_NE(forward({.first_sample = 1}, {.step = 3}), first);
}

TEST(Dropout, IsOffInValidationAndAtRateZero) {
  const auto plain = forward({.rate = 0}, {.step = 3});
  EXPECT_EQ(forward({.rate = 0, .layer = 2}, {.step = 4}), plain);
  EXPECT_EQ(forward({}, {.step = 3, .training = false}), plain);
  EXPECT_NE(forward({}, {.step = 3}), plain);
}

TEST(Dropout, HasAKeyOfItsOwnForEachPlace) {
  std::set<std::uint64_t> keys;
  for (const std::uint64_t seed : {5, 6}) {
    for (const std::int64_t step : {0, 1, 2}) {
      for (const int layer : {1, 2, 3}) {
        for (const int place : {0, 1})
          keys.insert(model::DropoutSource{.seed = seed, .step = step}.key(LayerId{layer}, place));
      }
    }
  }
  EXPECT_EQ(keys.size(), 36U);
}

}  // namespace
}  // namespace orthant::step
