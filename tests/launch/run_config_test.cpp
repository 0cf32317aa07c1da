// SPDX-License-Identifier: Apache-2.0
// Config rules as data, without starting ranks. How faults look to a person: config_errors_test.py.
#include <orthant/launch/run_config.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>

namespace orthant::launch {
namespace {

constexpr std::int64_t kVocab = 2048;

RunConfig quickstart(const std::vector<std::string>& overrides, int world) {
  return parse_run_config(config::ConfigDocument::read(ORTHANT_SOURCE_DIR "/configs/quickstart.toml", overrides), world,
                          kVocab);
}

std::vector<std::string> mesh(int pp, int dp, int tp) {
  return {fmt::format("mesh.pp={}", pp), fmt::format("mesh.dp={}", dp), fmt::format("mesh.tp={}", tp)};
}

std::string fault_of(const std::vector<std::string>& overrides, int world) {
  try {
    quickstart(overrides, world);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(QuickstartConfig, IsLegalOnEveryMeshItPromises) {
  int meshes = 0;
  for (const int pp : {1, 2, 4, 8}) {
    for (const int dp : {1, 2, 3, 4, 8}) {
      for (const int tp : {1, 2, 4, 8}) {
        if (pp * dp * tp > 8) continue;
        EXPECT_EQ(fault_of(mesh(pp, dp, tp), pp * dp * tp), "") << pp << dp << tp;
        ++meshes;
      }
    }
  }
  EXPECT_EQ(meshes, 23);
}

TEST(RunConfig, InfersOneAxisFromTheRanksAndTheVocabularyFromTheData) {
  const auto run = quickstart(mesh(2, 0, 2), 8);
  EXPECT_EQ(run.mesh.dp, 2);
  EXPECT_EQ(run.model.vocab, kVocab);
}

TEST(RunConfig, ResolvesToATextThatReadsBackToItself) {
  const auto run = quickstart(mesh(2, 0, 2), 8);
  const auto again = parse_run_config(config::ConfigDocument::parse(run.resolved, "resolved.toml"), 8, kVocab);
  EXPECT_EQ(again.resolved, run.resolved);
  EXPECT_EQ(again.mesh.dp, 2);
}

TEST(RunConfig, RefusesAxesWhoseProductDoesNotFitAnInt) {
  EXPECT_NE(fault_of({"mesh.pp=65536", "mesh.dp=65536", "mesh.tp=0"}, 8).find("not divisible"), std::string::npos);
  EXPECT_NE(fault_of(mesh(65536, 65536, 1), 8).find("8 ranks were started"), std::string::npos);
}

TEST(RunConfig, NamesTheDegreesThatDivideTheHeads) {
  const auto fault = fault_of({"mesh.pp=1", "mesh.dp=1", "mesh.tp=3"}, 3);
  EXPECT_NE(fault.find("heads = 8 is not divisible by tp = 3; use tp in {1, 2, 4, 8}"), std::string::npos) << fault;
}

// pytorch/torchtitan#1306: sizes that tensor parallelism cannot cut are refused with their numbers.
TEST(PeersBugs, SizesThatTensorParallelismCannotCutAreRefusedWithTheirNumbers) {
  const auto fault = [](std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"mesh.pp=1", "mesh.dp=1", "model.hidden=24", "model.head_dim=2"});
    return fault_of(overrides, 2);
  };
  const auto expect = [&](std::vector<std::string> overrides, const char* words) {
    const auto found = fault(std::move(overrides));
    EXPECT_NE(found.find(words), std::string::npos) << found;
  };
  expect({"mesh.tp=2", "train.seq_len=15"}, "seq_len = 15 is not divisible by tp = 2, as sequence parallelism needs");
  expect({"mesh.tp=2", "model.heads=3", "model.kv_heads=3"}, "heads = 3 is not divisible by tp = 2; use tp in {1, 3}");
  expect({"mesh.tp=2", "model.heads=6", "model.kv_heads=3"},
         "kv_heads = 3 is neither divisible by nor a divisor of tp = 2; use tp in {1, 3, 6}");
  expect({"mesh.tp=2", "model.ffn=33"}, "ffn = 33 is not divisible by tp = 2; use tp in {1}");
  EXPECT_EQ(fault({"mesh.tp=2", "model.kv_heads=1"}), "");
  EXPECT_EQ(fault({"mesh.tp=2", "train.seq_len=15", "tp.sequence_parallel=false"}), "");
}

TEST(RunConfig, RefusesWhatCannotHappen) {
  EXPECT_NE(fault_of({"fault.kind=throw", "fault.rank=8"}, 8).find("fault.rank"), std::string::npos);
  EXPECT_NE(fault_of({"device.kind=cuda"}, 8).find("device.kind"), std::string::npos);
}

TEST(RunConfig, RefusesShardingThatContradictsItself) {
  const auto refuses = [](std::vector<std::string> overrides, const char* words) {
    const auto fault = fault_of(overrides, 8);
    EXPECT_NE(fault.find(words), std::string::npos) << fmt::format("{}", fmt::join(overrides, " ")) << ": " << fault;
  };
  refuses({"fsdp.stage=1", "fsdp.residency=layer"}, "stage 1 keeps weights whole");
  refuses({"fsdp.stage=2", "fsdp.reduce=last_microbatch"}, "use stage = 1");
  refuses({"fsdp.stage=1", "fsdp.reduce=each_microbatch"}, "keeps gradients until the last micro-batch");
  refuses({"fsdp.stage=0", "fsdp.reduce_dtype=bf16"}, "fsdp.reduce_dtype");
  refuses({"train.precision=fp64", "fsdp.reduce_dtype=bf16"}, "fsdp.reduce_dtype");
  refuses({"mesh.pp=1", "mesh.tp=2", "mesh.dp=4", "mesh.dp_shard=3"}, "dp = 4 is not divisible by it");
  refuses({"mesh.dp_shard=1", "fsdp.stage=0"}, "stage = 0 shards nothing");
  refuses({"train.freeze=[\"embedding\", \"head\", \"norms\", \"layers.0-7\"]"}, "every unit is frozen");
  refuses({"train.freeze=[\"layers.7-8\"]"}, "is not within layers.0-7");
  refuses({"train.freeze_steps=3"}, "nothing is frozen");
  refuses({"model.tie_embeddings=true", "optimizer.head.lr_scale=0.5"}, "use optimizer.embedding");
  refuses({"train.freeze=[1]"}, "an array of strings");
  refuses({"optimizer.moments=bf16", "train.precision=fp64"}, "optimizer.moments");
}

TEST(RunConfig, SettlesTheShardGroupAndWhatTakesTurns) {
  using train::Residency;
  auto run = quickstart({"mesh.pp=1", "mesh.dp=4", "mesh.tp=2", "mesh.dp_shard=2"}, 8);
  EXPECT_EQ(run.mesh_shape(), (mesh::MeshShape{.dp_replicate = 2, .dp_shard = 2, .tp = 2}));
  EXPECT_EQ(run.residencies().weights, Residency::layer);
  EXPECT_EQ(run.residencies().gradients, Residency::layer);
  run = quickstart({}, 8);
  EXPECT_EQ(run.mesh_shape().dp_replicate, 1);
  EXPECT_EQ(run.residencies().weights, Residency::chunk);
  EXPECT_EQ(run.residencies().gradients, Residency::chunk);
  run = quickstart({"fsdp.stage=2"}, 8);
  EXPECT_EQ(run.residencies().weights, Residency::chunk);
  EXPECT_EQ(run.residencies().gradients, Residency::layer);
}

TEST(RunConfig, NormsDecayOnlyInAGroupThatSaysSo) {
  using shard::UnitKind;
  auto run = quickstart({"optimizer.weight_decay=0.2", "optimizer.embedding.lr_scale=0.5"}, 8);
  EXPECT_EQ(run.unit_policy(UnitKind::norms, 0).weight_decay, 0.0);
  EXPECT_EQ(run.unit_policy(UnitKind::block, 0).weight_decay, 0.2);
  EXPECT_EQ(run.unit_policy(UnitKind::embedding, -1).lr_scale, 0.5);
  EXPECT_EQ(run.unit_policy(UnitKind::head, -1).lr_scale, 1.0);
}

}  // namespace
}  // namespace orthant::launch
