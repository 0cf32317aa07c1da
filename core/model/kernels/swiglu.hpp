// SPDX-License-Identifier: Apache-2.0
// SwiGLU on the fused projection: silu(gate) * up. Nothing but the projection is kept for backward.
#pragma once

#include <ATen/core/Tensor.h>

namespace orthant::model::kernels {

// N rows  F ffn on this rank

/// gate_up [N, 2 F], gate in the first F columns. returns [N, F].
at::Tensor swiglu_forward(const at::Tensor& gate_up);

/// dy [N, F]. returns d gate_up [N, 2 F].
at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up);

}  // namespace orthant::model::kernels
