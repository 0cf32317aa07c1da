// SPDX-License-Identifier: Apache-2.0
// Causal grouped-query attention with rotary embedding, from the fused projection. Query heads that share a key/value
// head are stacked as rows of one batched product, so that G products do the work of H; scale, mask and softmax are one
// pass in place. The probabilities are kept for backward: [B, H, S, S] elements a layer and micro-batch.
#pragma once

#include <ATen/core/Tensor.h>
#include <orthant/core/model/kernels/rotary.hpp>

namespace orthant::model::kernels {

// S sequence  B batch  H query heads  G key/value heads (H divisible by G), on this rank  R = H/G  K head dim
// Query head h reads key/value head h / R.

struct AttentionShape {
  std::int64_t seq = 0;
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
};

/// What backward needs. q and k are rotated.
struct AttentionSaved {
  at::Tensor q;              ///< [B G, R S, K]
  at::Tensor k;              ///< [B G, S, K]
  at::Tensor v;              ///< [B G, S, K]
  at::Tensor probabilities;  ///< [B G, R S, S], zero above the diagonal
};

struct AttentionResult : AttentionSaved {
  at::Tensor context;  ///< [N, H K], rows sequence-major
};

/// qkv  [N, (H + 2 G) K], N = S B, row s B + b; columns: all query heads, all key heads, all value heads.
/// Throws  ShapeError if H is not divisible by G, or rotary has fewer than S rows.
AttentionResult attention_forward(const at::Tensor& qkv, const AttentionShape& shape, const RotaryTable& rotary);

/// dcontext [N, H K]. returns dqkv [N, (H + 2 G) K].
at::Tensor attention_backward(const at::Tensor& dcontext, const AttentionSaved& saved, const AttentionShape& shape,
                              const RotaryTable& rotary);

}  // namespace orthant::model::kernels
