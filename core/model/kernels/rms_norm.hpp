// SPDX-License-Identifier: Apache-2.0
// RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight, row by row.
#pragma once

#include <ATen/core/Tensor.h>
#include <orthant/core/model/kernels/accumulate.hpp>

namespace orthant::model::kernels {

// N rows  D hidden

/// Rows whose weight gradients are added up, in a row of scratch, before they meet those of other rows: fixes the
/// order, whatever the threads.
inline constexpr std::int64_t kRowsPerPartial = 32;

struct RmsNormResult {
  at::Tensor y;     ///< [N, D]
  at::Tensor rstd;  ///< [N] fp32 (fp64 for fp64): what backward needs
};

/// x [N, D], weight [D], of one type.
RmsNormResult rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps);

/// dy, x [N, D]; rstd from forward; dweight [D] fp32 (fp64 for fp64), summed over rows in an order that depends on N
/// alone. returns dx [N, D].
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, const at::Tensor& dweight, Accumulate mode);

}  // namespace orthant::model::kernels
