// SPDX-License-Identifier: Apache-2.0
// The model's operations with their derivatives, on the kernels of core/model/kernels. Weight gradients go straight
// into the flat gradient buffer (a parameter's `grad` view) or, under the B/W split, into the pass's queue; autograd
// never sees a weight.
#pragma once

#include <ATen/core/Tensor.h>
#include <orthant/core/model/kernels/attention.hpp>
#include <orthant/core/model/kernels/dropout.hpp>
#include <orthant/core/model/kernels/rotary.hpp>
#include <orthant/core/model/layer_pass.hpp>
#include <orthant/core/model/parameter.hpp>

namespace orthant::model {

// N rows (sequence x batch)  D model  F ffn  E = (H + 2 G) K with H query heads, G key/value heads, K head dim, all on
// this rank

/// [N, D] -> [N, D]. The norm's weight gradient is written in backward (never deferred).
at::Tensor rms_norm(const at::Tensor& x_ND, Parameter& weight, double eps);

/// [N, F local] x [E, F]^T -> [N, E].
at::Tensor linear(const at::Tensor& x_NF, Parameter& weight, LayerPass& pass);

/// Causal grouped-query attention with rotary embedding: [N, E] -> [N, H K].
/// saved  nullptr, or where to put the tensors that backward will read.
at::Tensor attention(const at::Tensor& qkv_NE, const kernels::AttentionShape& shape, const kernels::RotaryTable& rotary,
                     kernels::AttentionSaved* saved = nullptr);

/// RMSNorm over each query and key head: [N, E] -> [N, E]. Weight gradients are written in backward.
at::Tensor head_norm(const at::Tensor& qkv_NE, Parameter& query, Parameter& key, const kernels::AttentionShape& shape,
                     double eps);

/// silu(gate) * up: [N, 2 F] -> [N, F].
at::Tensor swiglu(const at::Tensor& gate_up_N2F);

/// residual + dropout(update), [N, D].
at::Tensor add_dropout(const at::Tensor& residual, const at::Tensor& update, const kernels::DropoutRows& rows);

/// A scalar whose derivative by `x` is `dx`: for functions that make value and gradient at once (loss heads).
at::Tensor with_gradient(const at::Tensor& x, const at::Tensor& value, const at::Tensor& dx);

}  // namespace orthant::model
