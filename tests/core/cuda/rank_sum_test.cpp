// SPDX-License-Identifier: Apache-2.0
// The kernel's element function, compiled for the host, against the sum of the CPU back ends.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <orthant/core/comm/rank_sum.hpp>
#include <orthant/core/cuda/rank_sum.cuh>

namespace orthant::cuda {
namespace {

constexpr std::int64_t kCount = 1003;

void set(std::vector<std::byte>& bytes, std::size_t i, DType type, double value) {
  const auto narrow = static_cast<float>(value);
  const std::uint16_t half = float_to_bf16(narrow);
  if (type == DType::bf16) std::memcpy(&bytes[2 * i], &half, 2);
  if (type == DType::f32) std::memcpy(&bytes[4 * i], &narrow, 4);
  if (type == DType::f64) std::memcpy(&bytes[8 * i], &value, 8);
}

std::vector<std::byte> values(DType type, std::int64_t count, unsigned seed) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size_of(type));
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  const double special[] = {0.0, -0.0, 1e-40, 3e38, -3e38, std::numeric_limits<double>::infinity(), std::nan("")};
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    set(bytes, i, type,
        random() % 16 == 0 ? special[random() % std::size(special)] : normal(random) * std::pow(10, normal(random)));
  }
  return bytes;
}

void expect_same(DType in_type, DType out_type, comm::Into into, int rows) {
  const auto in = values(in_type, kCount * rows, 1);
  auto expected = values(out_type, kCount, 2);
  auto found = expected;

  std::vector<const void*> row_pointers;
  for (int r = 0; r < rows; ++r) row_pointers.push_back(&in[static_cast<std::size_t>(r * kCount) * size_of(in_type)]);
  comm::reduce_rows(row_pointers, in_type, {expected.data(), kCount, out_type}, comm::Reduction::sum, into);

  const bool known = with_sum_types(in.data(), in_type, found.data(), out_type, [&](auto acc, auto* from, auto* to) {
    for (std::int64_t i = 0; i < kCount; ++i) {
      sum_element<decltype(acc)>(from, rows, kCount, to, i, into == comm::Into::accumulate);
    }
  });
  ASSERT_TRUE(known);
  EXPECT_EQ(found, expected) << name_of(in_type) << " into " << name_of(out_type) << ", " << rows << " rows";
}

TEST(RankSumKernel, GivesTheBitsOfTheCpuBackEnds) {
  for (const int rows : {1, 2, 3, 8}) {
    for (const auto into : {comm::Into::replace, comm::Into::accumulate}) {
      expect_same(DType::bf16, DType::f32, into, rows);
      expect_same(DType::f32, DType::f32, into, rows);
      expect_same(DType::f64, DType::f64, into, rows);
    }
    expect_same(DType::bf16, DType::bf16, comm::Into::replace, rows);
  }
}

TEST(RankSumKernel, RefusesOtherTypes) {
  float value = 0;
  const auto never = [](auto, auto*, auto*) { FAIL(); };
  EXPECT_FALSE(with_sum_types(&value, DType::f32, &value, DType::bf16, never));
  EXPECT_FALSE(with_sum_types(&value, DType::i64, &value, DType::i64, never));
}

}  // namespace
}  // namespace orthant::cuda
