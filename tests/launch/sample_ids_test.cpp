// SPDX-License-Identifier: Apache-2.0
// Which samples the ranks of a run see, from its config to the tokens. (karpathy/llm.c#792: ranks that shuffle each by
// itself see some samples twice and others never.)
#include <orthant/launch/run_data.hpp>

#include <algorithm>
#include <numeric>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <orthant/mesh/mesh_shape.hpp>
#include <orthant/tests/core/base/scratch_folder.hpp>

namespace orthant::launch {
namespace {

using orthant::testing::ScratchFolder;

constexpr std::int64_t kSeqLen = 4;
constexpr std::int64_t kGlobalBatch = 8;

/// Sample n begins with token n * kSeqLen.
std::string write_samples(const ScratchFolder& folder, std::int64_t samples) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(samples * kSeqLen + 1));
  std::iota(tokens.begin(), tokens.end(), 0);
  data::TokenFileWriter writer(folder / "t", std::ssize(tokens));
  writer.append(tokens);
  writer.finish();
  return (folder / "t").string();
}

struct Mesh {
  int pp, dp, tp, dp_shard;
  std::int64_t micro_batch;
};

RunConfig config_of(const std::string& tokens, const Mesh& mesh) {
  const auto text = fmt::format(
      "[model]\nlayers = 8\nhidden = 32\nheads = 8\nffn = 40\n"
      "[mesh]\npp = {}\ndp = {}\ntp = {}\ndp_shard = {}\n"
      "[train]\nglobal_batch = {}\nmicro_batch = {}\nseq_len = {}\n[data]\ntrain = \"{}\"\n",
      mesh.pp, mesh.dp, mesh.tp, mesh.dp_shard, kGlobalBatch, mesh.micro_batch, kSeqLen, tokens);
  return parse_run_config(config::ConfigDocument::parse(text, "config"), mesh.pp * mesh.dp * mesh.tp,
                          data::TokenFile(tokens).vocab_size());
}

/// The samples of a rank in one step, in the order in which it computes them.
std::vector<std::int64_t> ids_of(const RunConfig& run, const RunData& data, int rank, std::int64_t step) {
  const auto shape = run.mesh_shape();
  const auto read = data.reader(shape.dp_of(shape.coordinate_of(rank)));
  const auto count = run.train.micro_batch;
  std::vector<std::int64_t> ids;
  for (std::int64_t m = 0; m < run.microbatches(); ++m) {
    std::vector<std::int64_t> inputs(static_cast<std::size_t>(kSeqLen * count)), targets(inputs.size());
    read({.step = step, .training = true}, MicrobatchId{static_cast<int>(m)}, inputs.data(), targets.data());
    for (std::int64_t b = 0; b < count; ++b) {
      ids.push_back(inputs[static_cast<std::size_t>(b)] / kSeqLen);
      EXPECT_EQ(targets[static_cast<std::size_t>(b)], inputs[static_cast<std::size_t>(b)] + 1);
    }
  }
  return ids;
}

/// The samples of `steps` steps, those of a step in the order of the data-parallel ranks. Ranks that differ in pp and
/// tp only must see the same.
std::vector<std::int64_t> global_order(const std::string& tokens, const Mesh& mesh, std::int64_t steps) {
  const auto run = config_of(tokens, mesh);
  const RunData data(run);
  const auto shape = run.mesh_shape();
  std::vector<std::int64_t> order;
  for (std::int64_t step = 0; step < steps; ++step) {
    std::vector<std::vector<std::int64_t>> of_dp(static_cast<std::size_t>(shape.dp()));
    for (int rank = 0; rank < shape.size(); ++rank) {
      const auto ids = ids_of(run, data, rank, step);
      auto& known = of_dp[static_cast<std::size_t>(shape.dp_of(shape.coordinate_of(rank)))];
      if (known.empty()) known = ids;
      EXPECT_EQ(ids, known) << "rank " << rank << ", step " << step;
    }
    for (const auto& ids : of_dp) order.insert(order.end(), ids.begin(), ids.end());
  }
  return order;
}

const std::vector<Mesh> kMeshes{{1, 1, 1, 1, 1}, {1, 2, 1, 2, 1}, {1, 4, 1, 4, 1}, {1, 4, 1, 2, 2},
                                {2, 2, 2, 2, 2}, {4, 1, 2, 1, 1}, {2, 4, 1, 1, 1}, {1, 1, 1, 1, 8}};

/// 64 samples: epochs end with a step. 50: in the middle of one.
class SampleIds : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(SampleIds, EveryEpochOfAllRanksTogetherHasEachSampleOnce) {
  const ScratchFolder folder;
  const auto samples = GetParam();
  const auto tokens = write_samples(folder, samples);
  std::vector<std::int64_t> each(static_cast<std::size_t>(samples));
  std::iota(each.begin(), each.end(), 0);
  for (const auto& mesh : kMeshes) {
    auto order = global_order(tokens, mesh, 4 * samples / kGlobalBatch);
    ASSERT_EQ(std::ssize(order), 4 * samples);
    for (int epoch = 0; epoch < 4; ++epoch) {
      std::vector<std::int64_t> seen(order.begin() + epoch * samples, order.begin() + (epoch + 1) * samples);
      EXPECT_NE(seen, each) << "not shuffled";
      std::ranges::sort(seen);
      EXPECT_EQ(seen, each) << "epoch " << epoch << " of pp" << mesh.pp << " dp" << mesh.dp << " tp" << mesh.tp;
    }
  }
}

TEST_P(SampleIds, TheOrderIsTheSameOnEveryMesh) {
  const ScratchFolder folder;
  const auto tokens = write_samples(folder, GetParam());
  const auto expected = global_order(tokens, kMeshes.front(), 20);
  for (const auto& mesh : kMeshes) {
    EXPECT_EQ(global_order(tokens, mesh, 20), expected)
        << "pp" << mesh.pp << " dp" << mesh.dp << " tp" << mesh.tp << " micro-batches of " << mesh.micro_batch;
  }
}

INSTANTIATE_TEST_SUITE_P(EpochEnds, SampleIds, ::testing::Values(64, 50));

}  // namespace
}  // namespace orthant::launch
