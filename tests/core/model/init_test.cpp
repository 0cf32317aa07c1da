// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <orthant/core/model/init.hpp>

namespace orthant::model {
namespace {

/// One unit with a fused matrix cut by rows, a matrix cut by columns and a vector of ones.
shard::ParameterTable table_of(int tp_rank, int tp) {
  shard::ParameterTable table;
  shard::FlatUnit unit;
  unit.id = UnitId{1};
  unit.name = "layers.0";
  table.add_unit(unit);
  table.add_region(unit.id,
                   {{"q", shard::shard({12, 10}, 0, tp_rank, tp)}, {"k", shard::shard({7, 10}, 0, tp_rank, tp)}});
  table.add_region(unit.id, {{"o", shard::shard({10, 13}, 1, tp_rank, tp)}});
  table.add_region(unit.id, {{"norm", shard::replicate({10}), shard::Init::ones}});
  return table;
}

at::Tensor slice_of(const shard::ParameterTable& table, std::int64_t begin, std::int64_t count, at::ScalarType type) {
  auto values = at::full({count}, 7.0, type);
  init_unit(table, {.seed = 42, .std = 0.5}, {.unit = table.unit(UnitId{1}), .begin = begin, .values = values});
  return values;
}

/// The parameter's global tensor, put together from every rank's flat unit.
std::vector<float> gather(const std::string& name, int tp) {
  std::vector<float> global;
  for (int rank = 0; rank < tp; ++rank) {
    const auto table = table_of(rank, tp);
    const auto flat = slice_of(table, 0, table.unit(UnitId{1}).padded_numel(1), at::kFloat);
    for (const auto& parameter : table.parameters()) {
      if (parameter.name != name) continue;
      global.resize(shard::numel(parameter.placement.global_shape));
      for (const shard::Run& run : parameter.placement.runs()) {
        std::copy_n(flat.const_data_ptr<float>() + parameter.offset + run.local, run.length,
                    global.begin() + run.global);
      }
    }
  }
  return global;
}

TEST(InitUnit, SameBitsOnEveryMesh) {
  for (const char* name : {"q", "k", "o", "norm"}) {
    const auto one = gather(name, 1);
    for (int tp : {2, 3, 8}) EXPECT_EQ(gather(name, tp), one) << name << " tp " << tp;
  }
}

TEST(InitUnit, SlicesOfAnyDegreeMakeUpTheUnit) {
  const auto table = table_of(1, 2);
  const auto& unit = table.unit(UnitId{1});
  for (int degree : {1, 2, 3, 5}) {
    std::vector<at::Tensor> slices;
    const std::int64_t n = unit.shard_numel(degree);
    for (int rank = 0; rank < degree; ++rank) slices.push_back(slice_of(table, rank * n, n, at::kFloat));
    EXPECT_TRUE(at::cat(slices).equal(slice_of(table, 0, unit.padded_numel(degree), at::kFloat)));
  }
  for (std::int64_t begin : {1, 63, 64, 65}) {
    EXPECT_TRUE(slice_of(table, begin, 50, at::kFloat).equal(slice_of(table, 0, 256, at::kFloat).narrow(0, begin, 50)));
  }
}

TEST(InitUnit, Fp64RunsStartFromTheFp32Values) {
  const auto table = table_of(0, 1);
  EXPECT_TRUE(slice_of(table, 0, 384, at::kDouble).equal(slice_of(table, 0, 384, at::kFloat).to(at::kDouble)));
}

TEST(InitUnit, GapsAndPaddingAreZeroAndNothingElseIs) {
  const auto table = table_of(0, 1);
  const auto& unit = table.unit(UnitId{1});
  const auto flat = slice_of(table, 0, unit.padded_numel(3), at::kFloat);
  std::vector<bool> used(flat.numel(), false);
  for (const auto& region : unit.regions) std::fill_n(used.begin() + region.offset, shard::numel(region.shape), true);
  for (std::int64_t i = 0; i < flat.numel(); ++i) EXPECT_EQ(flat.const_data_ptr<float>()[i] != 0.0f, used[i]) << i;
}

TEST(InitUnit, SeedAndNameMatter) {
  const std::uint64_t q = stream_of("q");
  EXPECT_NE(standard_normal(1, q, 0), standard_normal(2, q, 0));
  EXPECT_NE(standard_normal(1, q, 0), standard_normal(1, stream_of("k"), 0));
  EXPECT_EQ(gather("q", 1)[5], static_cast<float>(0.5 * standard_normal(42, q, 5)));
}

TEST(StandardNormal, HasTheMomentsOfANormalDistribution) {
  constexpr int kCount = 200000;
  double mean = 0, variance = 0, fourth = 0, lag = 0, previous = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = standard_normal(3, stream_of("moments"), i);
    mean += x / kCount;
    variance += x * x / kCount;
    fourth += x * x * x * x / kCount;
    lag += x * previous / kCount;
    previous = x;
  }
  // Four standard errors each: 1, sqrt 2, sqrt 96 and 1, over sqrt(kCount).
  EXPECT_NEAR(mean, 0.0, 0.009);
  EXPECT_NEAR(variance, 1.0, 0.013);
  EXPECT_NEAR(fourth, 3.0, 0.088);
  EXPECT_NEAR(lag, 0.0, 0.009);
}

}  // namespace
}  // namespace orthant::model
