// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/dropout.hpp>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "tensors.hpp"

namespace orthant::model::kernels::test {
namespace {

/// What dropout makes of ones: its mask, scaled. [S, B, D] as rows.
at::Tensor mask(std::int64_t rows, std::int64_t columns, const DropoutRows& of) {
  return add_dropout(at::zeros({rows, columns}), at::ones({rows, columns}), of);
}

TEST(Dropout, LeavesOutItsShareAndKeepsTheMean) {
  const auto m = mask(1000, 40, {.rate = 0.25, .key = 5, .batch = 2});
  const double kept = (m > 0).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(kept, 0.75, 0.01);
  EXPECT_NEAR(m.mean().item<double>(), 1, 0.015);
  EXPECT_TRUE(same_bits(mask(3, 5, {.rate = 0}), at::ones({3, 5})));
}

TEST(Dropout, BelongsToTheElementAndNotToWhoHoldsIt) {
  const DropoutRows whole{.rate = 0.5, .key = 7, .first_sample = 4, .batch = 3};
  const auto m = mask(8 * 3, 10, whole);
  for (const std::int64_t first : {0, 6, 18}) {  // a sequence shard
    auto part = whole;
    part.first_row = first;
    EXPECT_TRUE(same_bits(mask(6, 10, part), m.narrow(0, first, 6)));
  }
  for (std::int64_t b = 0; b < 3; ++b) {  // another micro-batch size
    const auto one = mask(8, 10, {.rate = 0.5, .key = 7, .first_sample = 4 + b, .batch = 1});
    EXPECT_TRUE(same_bits(one, m.view({8, 3, 10}).select(1, b)));
  }
  for (const int threads : {1, 2}) {
    const Threads scope(threads);
    EXPECT_TRUE(same_bits(mask(8 * 3, 10, whole), m));
  }
}

TEST(Dropout, OfAnotherKeyOrSampleIsAnother) {
  const DropoutRows rows{.rate = 0.5, .key = 7};
  const auto m = mask(64, 64, rows);
  for (const DropoutRows& other : {DropoutRows{.rate = 0.5, .key = 8}, {.rate = 0.5, .key = 7, .first_sample = 1}}) {
    const double same = (mask(64, 64, other) == m).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(same, 0.5, 0.05);
  }
}

TEST(Dropout, BackwardHasTheMaskOfForward) {
  const DropoutRows rows{.rate = 0.3, .key = 9, .first_sample = 2, .batch = 2, .first_row = 4};
  for (const auto type : kTypes) {
    const auto residual = normal(1, {6, 7}, type), update = normal(2, {6, 7}, type), dout = normal(3, {6, 7}, type);
    const auto m = (mask(6, 7, rows) > 0).to(at::kDouble) / 0.7;
    EXPECT_LT(
        relative_error(add_dropout(residual, update, rows), residual.to(at::kDouble) + m * update.to(at::kDouble)),
        tolerance(type));
    EXPECT_LT(relative_error(dropout_backward(dout, rows), m * dout.to(at::kDouble)), tolerance(type));
  }
}

}  // namespace
}  // namespace orthant::model::kernels::test
