// SPDX-License-Identifier: Apache-2.0
// A linear layer's weight gradient, written straight into a view of the flat gradient buffer.
#pragma once

#include <ATen/core/Tensor.h>
#include <orthant/core/model/kernels/accumulate.hpp>

namespace orthant::model::kernels {

// N rows (may be 0)  E output features (0: empty vocabulary shard)  F input features

/// grad [E, F] fp32 (fp64 for fp64) (+)= dy^T x, with dy [N, E], x [N, F]. No temporary but for bf16
/// products that are not widened (product.hpp): those are rounded to bf16 once (oneDNN's own fp32 sum), then added in
/// fp32.
void accumulate_weight_grad(const at::Tensor& grad, const at::Tensor& dy, const at::Tensor& x, Accumulate mode);

}  // namespace orthant::model::kernels
