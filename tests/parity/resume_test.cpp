// SPDX-License-Identifier: Apache-2.0
// A run that stops and goes on is the run that did not stop: bit for bit on the same mesh, and at parity on any other,
// whose gathered weights and moments are those that were saved.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ops/equal.h>

#include <orthant/core/ckpt/checkpoint_reader.hpp>
#include <orthant/tests/core/base/scratch_folder.hpp>
#include <orthant/tests/parity/sharding_config.hpp>

namespace orthant::tests {
namespace {

using orthant::testing::ScratchFolder;

void expect_same_bits(const Tensors& found, const Tensors& wanted, const char* what) {
  ASSERT_EQ(found.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) EXPECT_TRUE(at::equal(found.at(name), tensor)) << what << " of " << name;
}

/// 5 layers and a vocabulary of 97 divide by nothing; heads, ffn and batch by every mesh that is tried.
launch::RunConfig resume_config(launch::MeshConfig mesh, DType precision) {
  auto run = sharding_config(1, 24, precision);
  run.model.layers = 5;
  run.model.heads = run.model.kv_heads = 8;
  run.model.head_dim = 2;
  run.mesh = mesh;
  run.train.global_batch = 24;
  run.lr = {.kind = optim::LrKind::cosine, .peak = 1e-2, .warmup = 4};
  return run;
}

struct BitEqual : ::testing::TestWithParam<const char*> {};

TEST_P(BitEqual, TenAndTenAndTenStepsAreThirty) {
  auto run = resume_config({.pp = 2, .dp = 2, .tp = 2}, DType::bf16);
  run.train.steps = 30;
  run.train.global_batch = 8;
  run.model.dropout = 0.1;
  run.pipeline.schedule = "zb_h1";
  run.pipeline.post_validation = GetParam();
  const auto whole = run_trajectory(run, {.wants_moments = true});

  const ScratchFolder scratch;
  Trajectory part;
  std::vector<double> losses, norms;
  for (const int until : {10, 20, 30}) {
    part = run_trajectory(run, {.wants_moments = true, .checkpoints = scratch.path(), .until = until});
    ASSERT_EQ(part.losses.size(), 10u);
    losses.insert(losses.end(), part.losses.begin(), part.losses.end());
    norms.insert(norms.end(), part.norms.begin(), part.norms.end());
  }
  EXPECT_EQ(losses, whole.losses);
  EXPECT_EQ(norms, whole.norms);
  expect_same_bits(part.final, whole.final, "weights");
  expect_same_bits(part.moments, whole.moments, "moments");
}
INSTANTIATE_TEST_SUITE_P(Resume, BitEqual, ::testing::Values("off", "on", "auto"));

std::string described(const launch::RunConfig& run) {
  return fmt::format("pp{} dp{} tp{} stage {}", run.mesh.pp, run.mesh.dp, run.mesh.tp, run.fsdp.stage);
}

/// A run that has left a checkpoint behind, and what it would have come to.
class Saved {
 public:
  static constexpr std::int64_t kSteps = 3;

  explicit Saved(const launch::RunConfig& run)
      : name_(described(run)),
        saved_(run_trajectory(run, {.wants_moments = true, .checkpoints = scratch_.path(), .until = kSteps})),
        unbroken_(run_trajectory(run)) {}

  void expect_goes_on_as(const launch::RunConfig& run) {
    SCOPED_TRACE(fmt::format("{} from {}", described(run), name_));
    const ScratchFolder copy;
    std::filesystem::copy(scratch_.path(), copy.path(), std::filesystem::copy_options::recursive);
    const auto found = run_trajectory(run, {.wants_moments = true, .checkpoints = copy.path()});
    expect_same_bits(found.initial, saved_.final, "loaded weights");
    expect_same_bits(found.loaded, saved_.moments, "loaded moments");
    ASSERT_EQ(found.losses.size(), unbroken_.losses.size() - static_cast<std::size_t>(kSteps));
    for (std::size_t i = 0; i < found.losses.size(); ++i) {
      const double wanted = unbroken_.losses[i + static_cast<std::size_t>(kSteps)];
      EXPECT_NEAR(found.losses[i], wanted, 1e-10 * wanted) << "loss " << i;
    }
  }

 private:
  std::string name_;
  ScratchFolder scratch_;
  Trajectory saved_, unbroken_;
};

std::vector<launch::MeshConfig> all_meshes() {
  std::vector<launch::MeshConfig> meshes{{.dp = 3}};
  for (const int pp : {1, 2, 4}) {  // five layers fill no eight stages: EightStages
    for (const int dp : {1, 2, 4, 8}) {
      for (const int tp : {1, 2, 4, 8}) {
        if (pp * dp * tp <= 8) meshes.push_back({.pp = pp, .dp = dp, .tp = tp});
      }
    }
  }
  return meshes;
}

launch::RunConfig reshard_config(launch::MeshConfig mesh, int variant) {
  auto run = resume_config(mesh, DType::f64);
  run.train.steps = 5;
  run.fsdp.stage = variant % 4;
  run.pipeline.schedule = mesh.pp > 1 && variant % 2 == 0 ? "zb_h1" : "1f1b";
  run.model.tie_embeddings = false;
  return run;
}

TEST(Resume, WhatOneMeshHasSavedEveryOtherLoads) {
  Saved saved(reshard_config({.pp = 2, .dp = 2, .tp = 2}, 3));
  int variant = 0;
  for (const auto& mesh : all_meshes()) saved.expect_goes_on_as(reshard_config(mesh, variant++));
}

TEST(Resume, EveryMeshSavesForOneAndForAnother) {
  int variant = 1;
  for (const launch::MeshConfig& mesh :
       {launch::MeshConfig{}, {.dp = 3}, {.dp = 8}, {.tp = 8}, {.pp = 4}, {.pp = 4, .tp = 2}}) {
    Saved saved(reshard_config(mesh, variant++));
    saved.expect_goes_on_as(reshard_config({}, 0));
    saved.expect_goes_on_as(reshard_config({.pp = 2, .dp = 2, .tp = 2}, 3));
  }
}

/// With one layer more, as the first and the last of eight stages may be without.
TEST(Resume, EightStagesLoadWhatFewerSavedAndTheOtherWayRound) {
  const auto six_layers = [](launch::MeshConfig mesh, int variant) {
    auto run = reshard_config(mesh, variant);
    run.model.layers = 6;
    if (mesh.pp == 8) run.pipeline.layers_per_stage = {0, 1, 1, 1, 1, 1, 1, 0};
    return run;
  };
  const auto eight_stages = six_layers({.pp = 8}, 0), others = six_layers({.pp = 2, .dp = 2, .tp = 2}, 3);
  Saved(others).expect_goes_on_as(eight_stages);
  Saved(eight_stages).expect_goes_on_as(others);
}

/// Shared key/value heads, tied embeddings, frozen units with their own count of updates, hybrid sharding.
TEST(Resume, CarriesWhatIsHeldTwiceOrNotAtAll) {
  const auto odd = [](launch::MeshConfig mesh) {
    auto run = reshard_config(mesh, 3);
    run.model.tie_embeddings = true;
    run.model.kv_heads = 2;
    run.model.qk_norm = true;
    run.train.freeze = {"layers.0-1"};
    run.train.freeze_steps = 2;
    run.optimizer.kind = optim::OptimizerKind::adamw;
    return run;
  };
  auto hybrid = odd({.dp = 4, .tp = 2});
  hybrid.mesh.dp_shard = 2;
  Saved saved(odd({.pp = 2, .tp = 4}));
  saved.expect_goes_on_as(odd({.pp = 4, .dp = 2}));
  saved.expect_goes_on_as(hybrid);
  Saved(hybrid).expect_goes_on_as(odd({.pp = 2, .tp = 4}));
}

}  // namespace
}  // namespace orthant::tests
