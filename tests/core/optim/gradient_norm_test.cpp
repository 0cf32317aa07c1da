// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <orthant/core/optim/gradient_norm.hpp>

namespace orthant::optim {
namespace {

TEST(SumOfSquares, IsExactOnIntegersOfAnyCount) {
  for (std::int64_t n : {0, 1, 15, 16, 17, 1000, 16384, 16385, 50001}) {
    const double wanted = static_cast<double>(n) * static_cast<double>(n + 1) * static_cast<double>(2 * n + 1) / 6.0;
    EXPECT_EQ(sum_of_squares(at::arange(1, n + 1, at::kFloat)), wanted) << n;
    EXPECT_EQ(sum_of_squares(at::arange(1, n + 1, at::kDouble)), wanted) << n;
  }
}

TEST(SumOfSquares, AddsInDoublePrecision) {
  // In fp32 the sum would stop growing at 2^24 of these.
  EXPECT_EQ(sum_of_squares(at::full({1 << 25}, 1.0f)), static_cast<double>(1 << 25));
  EXPECT_EQ(sum_of_squares(at::full({2}, 1e30f)), 2.0 * static_cast<double>(1e30f) * static_cast<double>(1e30f));
}

TEST(ClipScale, OnlyShrinks) {
  EXPECT_EQ(clip_scale(0.5, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_scale(4.0, 1.0), 1.0 / (4.0 + 1e-6));
  EXPECT_EQ(clip_scale(4.0, 0.0), 1.0);
}

}  // namespace
}  // namespace orthant::optim
