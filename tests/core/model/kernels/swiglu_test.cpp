// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/swiglu.hpp>

#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>

#include "tensors.hpp"

namespace orthant::model::kernels::test {
namespace {

TEST(Swiglu, MatchesAutogradOfItsDefinition) {
  for (const auto type : kTypes) {
    for (const std::int64_t ffn : {1, 31, 33, 64, 200}) {
      const auto gate_up = normal(1, {7, 2 * ffn}, type) * 3, dy = normal(2, {7, ffn}, type);
      auto exact = gate_up.to(at::kDouble, false, true).requires_grad_();
      const auto wanted = at::silu(exact.narrow(1, 0, ffn)) * exact.narrow(1, ffn, ffn);
      wanted.backward(dy.to(at::kDouble));
      EXPECT_LT(relative_error(swiglu_forward(gate_up), wanted.detach()), tolerance(type));
      EXPECT_LT(relative_error(swiglu_backward(dy, gate_up), exact.grad()), tolerance(type));
    }
  }
}

TEST(Swiglu, AnElementDoesNotDependOnTheRowsLength) {
  for (const auto type : kTypes) {
    const auto gate = normal(1, {3, 70}, type), up = normal(2, {3, 70}, type);
    const auto of_first = [&](std::int64_t ffn) {
      return swiglu_forward(at::cat({gate.narrow(1, 0, ffn), up.narrow(1, 0, ffn)}, 1));
    };
    const auto whole = of_first(70);
    for (std::int64_t ffn = 1; ffn < 70; ++ffn) ASSERT_TRUE(same_bits(of_first(ffn), whole.narrow(1, 0, ffn))) << ffn;
  }
}

TEST(Swiglu, StaysFiniteForLargeGatesAndKeepsNan) {
  const auto inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const auto gate_up = at::tensor({-200.0F, 200.0F, nan, 1.0F, 1.0F, 1.0F}).view({1, 6});
  const auto y = swiglu_forward(gate_up);
  EXPECT_EQ(y[0][0].item<float>(), 0.0F);
  EXPECT_EQ(y[0][1].item<float>(), 200.0F);
  EXPECT_TRUE(std::isnan(y[0][2].item<float>()));
  EXPECT_LT(swiglu_backward(at::ones({1, 3}), gate_up).narrow(1, 0, 2).abs().max().item<float>(), inf);
}

}  // namespace
}  // namespace orthant::model::kernels::test
