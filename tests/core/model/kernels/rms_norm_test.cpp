// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/rms_norm.hpp>

#include <ATen/ops/full.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>
#include <orthant/core/model/kernels/expect.hpp>

#include "tensors.hpp"

namespace orthant::model::kernels::test {
namespace {

at::Tensor oracle(const at::Tensor& x, const at::Tensor& weight) {
  return x * at::rsqrt(x.pow(2).mean({1}, true) + 1e-5) * weight;
}

TEST(RmsNorm, MatchesAutogradOfItsDefinition) {
  for (const auto type : kTypes) {
    for (const std::int64_t rows : {1, 5, 33, 99}) {
      for (const std::int64_t dim : {1, 6, 40, 64, 97}) {
        const auto x = normal(1, {rows, dim}, type), weight = normal(2, {dim}, type), dy = normal(3, {rows, dim}, type);
        auto x_exact = x.to(at::kDouble, false, true).requires_grad_(),
             w_exact = weight.to(at::kDouble, false, true).requires_grad_();
        const auto wanted = oracle(x_exact, w_exact);
        wanted.backward(dy.to(at::kDouble));

        const auto found = rms_norm_forward(x, weight, 1e-5);
        EXPECT_LT(relative_error(found.y, wanted.detach()), tolerance(type));
        auto dweight = at::full({dim}, 1e30, at::TensorOptions().dtype(compute_type(type)));
        const auto dx = rms_norm_backward(dy, x, weight, found.rstd, dweight, Accumulate::overwrite);
        // One element a row: dx is zero but for eps, so that rounding is all there is.
        if (dim > 1) {
          EXPECT_LT(relative_error(dx, x_exact.grad()), tolerance(type)) << rows << " x " << dim;
        }
        EXPECT_LT(relative_error(dweight, w_exact.grad()), tolerance(type)) << rows << " x " << dim;
        rms_norm_backward(dy, x, weight, found.rstd, dweight, Accumulate::add);
        EXPECT_LT(relative_error(dweight, 2 * w_exact.grad()), tolerance(type));
      }
    }
  }
}

TEST(RmsNorm, OverwriteIgnoresGarbageAndZeroRowsGiveZero) {
  const auto nothing = at::empty({0, 8}), weight = normal(1, {8}, at::kFloat);
  auto dweight = at::full({8}, std::numeric_limits<double>::quiet_NaN());
  rms_norm_backward(nothing, nothing, weight, at::empty({0}), dweight, Accumulate::overwrite);
  EXPECT_TRUE(same_bits(dweight, at::zeros({8})));
}

TEST(RmsNorm, RejectsAnotherShapeOrType) {
  const auto x = normal(1, {3, 8}, at::kFloat);
  EXPECT_THROW(rms_norm_forward(x, normal(2, {7}, at::kFloat), 1e-5), ShapeError);
  EXPECT_THROW(rms_norm_forward(x, normal(2, {8}, at::kDouble), 1e-5), ShapeError);
  EXPECT_THROW(rms_norm_forward(x.t(), normal(2, {3}, at::kFloat), 1e-5), ShapeError);
}

}  // namespace
}  // namespace orthant::model::kernels::test
