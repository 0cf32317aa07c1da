// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/weight_grad.hpp>

#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <orthant/core/model/kernels/expect.hpp>

#include "tensors.hpp"

namespace orthant::model::kernels::test {
namespace {

TEST(WeightGrad, IsTheProductOverwrittenOrAdded) {
  for (const auto type : kTypes) {
    for (const std::int64_t rows : {1, 5, 33}) {
      for (const std::int64_t out : {1, 33, 97}) {
        const auto dy = normal(1, {rows, out}, type), x = normal(2, {rows, 40}, type);
        const auto wanted = at::mm(dy.to(at::kDouble).t(), x.to(at::kDouble));
        auto buffer = at::full({out * 40 + 100}, std::numeric_limits<double>::quiet_NaN(),
                               dy.options().dtype(compute_type(type)));
        const auto grad = buffer.narrow(0, 64, out * 40).view({out, 40});
        accumulate_weight_grad(grad, dy, x, Accumulate::overwrite);
        EXPECT_LT(relative_error(grad, wanted), tolerance(type));
        accumulate_weight_grad(grad, dy, x, Accumulate::add);
        EXPECT_LT(relative_error(grad, 2 * wanted), tolerance(type));
        EXPECT_TRUE(buffer.narrow(0, 0, 64).isnan().all().item<bool>()) << "wrote before the view";
        EXPECT_TRUE(buffer.narrow(0, 64 + out * 40, 36).isnan().all().item<bool>()) << "wrote behind the view";
      }
    }
  }
}

TEST(WeightGrad, NoRowsGiveZeroAndAnEmptyShardIsFine) {
  for (const auto type : kTypes) {
    const auto wide = at::TensorOptions().dtype(compute_type(type)), narrow = at::TensorOptions().dtype(type);
    auto grad = at::full({3, 4}, 2.0, wide);
    accumulate_weight_grad(grad, at::empty({0, 3}, narrow), at::empty({0, 4}, narrow), Accumulate::add);
    EXPECT_TRUE(same_bits(grad, at::full({3, 4}, 2.0, wide)));
    accumulate_weight_grad(grad, at::empty({0, 3}, narrow), at::empty({0, 4}, narrow), Accumulate::overwrite);
    EXPECT_TRUE(same_bits(grad, at::zeros({3, 4}, wide)));
    EXPECT_NO_THROW(accumulate_weight_grad(at::empty({0, 4}, wide), at::empty({5, 0}, narrow),
                                           at::empty({5, 4}, narrow), Accumulate::add));
  }
}

TEST(WeightGrad, RejectsANarrowBuffer) {
  const auto bf16 = at::TensorOptions().dtype(at::kBFloat16);
  EXPECT_THROW(accumulate_weight_grad(at::empty({3, 4}, bf16), at::empty({5, 3}, bf16), at::empty({5, 4}, bf16),
                                      Accumulate::add),
               ShapeError);
}

}  // namespace
}  // namespace orthant::model::kernels::test
