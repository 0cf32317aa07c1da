// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/rotary.hpp>

#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/sin.h>
#include <orthant/core/model/kernels/expect.hpp>

namespace orthant::model::kernels {

RotaryTable rotary_table(std::int64_t seq, std::int64_t head_dim, double theta, const at::TensorOptions& options) {
  if (head_dim <= 0 || head_dim % 2 != 0)
    throw ShapeError("rotary embedding needs an even head dim, not " + std::to_string(head_dim));
  const auto exact = at::TensorOptions().dtype(at::kDouble);
  const auto inverse_frequency =
      at::exp(at::arange(0, head_dim, 2, exact) * (-std::log(theta) / static_cast<double>(head_dim)));
  const auto angle = at::outer(at::arange(seq, exact), inverse_frequency);
  const auto kept = options.dtype(compute_type(options.dtype().toScalarType()));
  return {at::cos(angle).to(kept), at::sin(angle).to(kept)};
}

}  // namespace orthant::model::kernels
