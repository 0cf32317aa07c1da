// SPDX-License-Identifier: Apache-2.0
// Frozen units: neither gradient nor state nor decay, for some steps or for all, on every mesh.
#include <gtest/gtest.h>

#include <orthant/launch/frozen_units.hpp>
#include <orthant/core/base/error.hpp>
#include <orthant/tests/parity/sharding_config.hpp>

namespace orthant::tests {
namespace {

bool is_of_first_two_blocks(const std::string& name) {
  return name.starts_with("model.layers.0.") || name.starts_with("model.layers.1.");
}

launch::RunConfig frozen_config(int steps, int freeze_steps) {
  auto run = sharding_config(2, 2);
  run.train.steps = steps;
  run.train.freeze = {"layers.0-1"};
  run.train.freeze_steps = freeze_steps;
  return run;
}

TEST(Freeze, LeavesFrozenWeightsAndOthersGradientsAsTheyWere) {
  const auto run = alone(frozen_config(3, 0));
  auto thawed = run;
  thawed.train.freeze = {};
  const auto got = run_trajectory(run), free = run_trajectory(thawed);
  for (const auto& [name, weight] : got.final) {
    const bool frozen = is_of_first_two_blocks(name);
    EXPECT_EQ(weight.equal(got.initial.at(name)), frozen) << name;
    EXPECT_EQ(got.gradients.at(name).count_nonzero().item<std::int64_t>() == 0, frozen) << name;
    if (!frozen) {
      EXPECT_TRUE(got.gradients.at(name).equal(free.gradients.at(name))) << name;
    }
  }
  EXPECT_LT(got.norms[0], free.norms[0]);
}

/// pytorch/pytorch#186998: frozen at first, then not. The thawed units start with moments and a step count of their
/// own, as PyTorch's do.
TEST(Freeze, EndsAfterSomeStepsOnEveryMesh) {
  const auto want = run_trajectory(alone(frozen_config(5, 3)));
  const auto short_run = run_trajectory(alone(frozen_config(3, 3)));
  for (const auto& [name, weight] : short_run.final)
    EXPECT_EQ(weight.equal(short_run.initial.at(name)), is_of_first_two_blocks(name)) << name;
  for (const auto& [name, weight] : want.final) EXPECT_FALSE(weight.equal(want.initial.at(name))) << name;
  for (const Ladder& rung : kLadder) {
    for (const int pp : {1, 2}) {  // with two stages, all blocks of the first are frozen
      auto run = frozen_config(5, 3);
      run.mesh.pp = pp;
      run.pipeline.schedule = "zb_h1";
      run.fsdp = rung.fsdp;
      SCOPED_TRACE(fmt::format("{} pp{}", rung.name, pp));
      expect_parity(run_trajectory(run), want, {1e-11, 1e-10});
    }
  }
}

TEST(Freeze, AWholeStageNeverTrains) {
  auto run = sharding_config(2, 3);
  run.train.freeze = {"embedding", "layers.0-1"};
  const auto want = run_trajectory(alone(run));
  run.mesh = {.pp = 2, .dp = 2, .tp = 2};
  run.pipeline.schedule = "zb_h1";
  run.pipeline.layers_per_stage = {2, 1};
  run.pipeline.post_validation = "on";
  for (const Ladder& rung : kLadder) {
    run.fsdp = rung.fsdp;
    SCOPED_TRACE(rung.name);
    expect_parity(run_trajectory(run), want, {1e-11, 1e-10});
  }
}

TEST(Freeze, KeepsTheReductionsTypeInBf16) {
  auto run = sharding_config(2, 2, DType::bf16);
  run.train.steps = 5;
  run.train.freeze = {"layers.0-1"};
  run.train.freeze_steps = 3;
  run.fsdp = {.stage = 3, .residency = "layer"};
  const auto want = run_trajectory(alone(run)), got = run_trajectory(run);
  for (std::size_t step = 0; step < want.losses.size(); ++step) EXPECT_NEAR(got.losses[step], want.losses[step], 1e-2);
}

TEST(FrozenUnits, AreNamedOrRefused) {
  using launch::parse_frozen_units;
  const auto frozen = parse_frozen_units({"layers.2", "layers.0-1", "norms"}, 4, false);
  EXPECT_EQ(frozen.blocks, (std::vector{true, true, true, false}));
  EXPECT_TRUE(frozen.norms);
  EXPECT_FALSE(frozen.embedding || frozen.head || frozen.all(false));
  EXPECT_TRUE(parse_frozen_units({"embedding", "norms", "layers.0-3"}, 4, true).all(true));
  const auto refusal = [](const char* name, bool tied) -> std::string {
    try {
      parse_frozen_units({name}, 4, tied);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal("layers.1-4", false), "\"layers.1-4\" is not within layers.0-3");
  EXPECT_NE(refusal("norm", false).find("did you mean \"norms\"?"), std::string::npos);
  EXPECT_NE(refusal("layers.x", false).find("is no unit"), std::string::npos);
  EXPECT_NE(refusal("head", true).find("use \"embedding\""), std::string::npos);
}

}  // namespace
}  // namespace orthant::tests
