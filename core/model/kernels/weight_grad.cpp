// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/weight_grad.hpp>

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <orthant/core/model/kernels/composed.hpp>
#include <orthant/core/model/kernels/expect.hpp>
#include <orthant/core/model/kernels/product.hpp>
#include <orthant/core/model/kernels/simd.hpp>

namespace orthant::model::kernels {
namespace {

/// grad (+)= value for a bf16 value and an fp32 gradient.
void accumulate_bf16(const at::Tensor& grad, const at::Tensor& value, Accumulate mode) {
  if (!grad.is_cpu()) return composed::accumulate(grad, value, mode);
  const auto* in = value.const_data_ptr<at::BFloat16>();
  auto* out = grad.mutable_data_ptr<float>();
  parallel_rows(grad.numel(), 1, [&](std::int64_t begin, std::int64_t end) {
    for_blocks<float>(end - begin, [&](std::int64_t i, std::int64_t n) {
      const auto value_i = load(in + begin + i, n);
      store<float>(mode == Accumulate::add ? load<float>(out + begin + i, n) + value_i : value_i, out + begin + i, n);
    });
  });
}

}  // namespace

void accumulate_weight_grad(const at::Tensor& grad, const at::Tensor& dy, const at::Tensor& x, Accumulate mode) {
  const auto type = dy.scalar_type();
  expect(dy, "dy", type, {-1, -1});
  expect(x, "x", type, {dy.size(0), -1});
  expect(grad, "grad", compute_type(type), {dy.size(1), x.size(1)});
  if (grad.numel() == 0) return;
  if (dy.size(0) == 0) {
    if (mode == Accumulate::overwrite) grad.zero_();
  } else if (widens(type, dy.device().type())) {
    widened_product(grad, dy.t(), x, mode);
  } else if (type == at::kBFloat16) {
    accumulate_bf16(grad, at::mm(dy.t(), x), mode);
  } else {
    at::Tensor out = grad;
    at::addmm_out(out, grad, dy.t(), x, mode == Accumulate::add ? 1 : 0);
  }
}

}  // namespace orthant::model::kernels
