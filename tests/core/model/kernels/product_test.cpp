// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/product.hpp>

#include <ATen/ops/bmm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>

#include "tensors.hpp"

namespace orthant::model::kernels::test {
namespace {

at::Tensor maybe_transposed(at::Tensor t, bool transposed) { return transposed ? t.t().contiguous().t() : t; }

TEST(Product, OfBf16IsRoundedOnceAtSizesAroundABlock) {
  for (const std::int64_t rows : {1, 512, 515}) {
    for (const std::int64_t inner : {1, 513, 1025}) {
      for (const std::int64_t columns : {3, 1024, 1031}) {
        for (const int transposed : {0, 1, 2, 3}) {
          const auto a = maybe_transposed(normal(1, {rows, inner}, at::kBFloat16), transposed & 1);
          const auto b = maybe_transposed(normal(2, {inner, columns}, at::kBFloat16), transposed & 2);
          const auto wanted = at::mm(a.to(at::kDouble), b.to(at::kDouble));
          auto narrow = at::empty({rows, columns}, a.options());
          widened_product(narrow, a, b, Accumulate::overwrite);
          EXPECT_LT(relative_error(narrow, wanted), 2.5e-3) << rows << ' ' << inner << ' ' << columns;
          auto wide = at::full({rows, columns}, 7.0, a.options().dtype(at::kFloat));
          widened_product(wide, a, b, Accumulate::overwrite);
          EXPECT_LT(relative_error(wide, wanted), 1e-5) << rows << ' ' << inner << ' ' << columns;
          widened_product(wide, a, b, Accumulate::add);
          EXPECT_LT(relative_error(wide, 2 * wanted), 1e-5) << rows << ' ' << inner << ' ' << columns;
        }
      }
    }
  }
}

TEST(Product, IsAtensInEveryType) {
  for (const auto type : kTypes) {
    const auto a = normal(1, {3, 5, 7}, type), b = normal(2, {3, 7, 4}, type);
    EXPECT_LT(relative_error(product(a[0], b[0]), at::mm(a[0].to(at::kDouble), b[0].to(at::kDouble))), tolerance(type));
    EXPECT_LT(relative_error(batched_product(a, b), at::bmm(a.to(at::kDouble), b.to(at::kDouble))), tolerance(type));
    EXPECT_LT(relative_error(batched_product(b.transpose(1, 2), a.transpose(1, 2)),
                             at::bmm(b.to(at::kDouble).transpose(1, 2), a.to(at::kDouble).transpose(1, 2))),
              tolerance(type));
  }
}

TEST(Product, OfNothingIsZero) {
  const auto bf16 = at::TensorOptions(at::kBFloat16);
  auto out = at::full({2, 3}, 7.0, bf16);
  widened_product(out, at::empty({2, 0}, bf16), at::empty({0, 3}, bf16), Accumulate::overwrite);
  EXPECT_EQ(out.abs().sum().item<float>(), 0);
  EXPECT_EQ(product(at::empty({0, 4}, bf16), at::empty({4, 3}, bf16)).numel(), 0);
}

}  // namespace
}  // namespace orthant::model::kernels::test
