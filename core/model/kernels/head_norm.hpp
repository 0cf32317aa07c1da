// SPDX-License-Identifier: Apache-2.0
// RMSNorm over each query head and each key head of the fused projection; values pass. One weight for all query heads,
// one for all key heads. Source: Dehghani et al. 2023 (ViT-22B), section 2; Henry et al. 2020.
#pragma once

#include <ATen/core/Tensor.h>
#include <orthant/core/model/kernels/accumulate.hpp>
#include <orthant/core/model/kernels/attention.hpp>

namespace orthant::model::kernels {

// N rows  H query heads, G key/value heads, on this rank  K head dim

struct HeadNormWeights {
  at::Tensor query;  ///< [K]
  at::Tensor key;    ///< [K]
};

struct HeadNormResult {
  at::Tensor qkv = {};     ///< [N, (H + 2 G) K]
  at::Tensor q_rstd = {};  ///< [N H] fp32 (fp64 for fp64)
  at::Tensor k_rstd = {};  ///< [N G]
};

/// qkv  as attention_forward()'s.
HeadNormResult head_norm_forward(const at::Tensor& qkv, const HeadNormWeights& weights, const AttentionShape& shape,
                                 double eps);

/// Where a weight's gradient goes. [K] fp32 (fp64 for fp64)
struct HeadNormGradient {
  at::Tensor memory;
  Accumulate mode = Accumulate::overwrite;
};

/// dout, qkv [N, (H + 2 G) K]; saved: the statistics of forward. returns dqkv.
at::Tensor head_norm_backward(const at::Tensor& dout, const at::Tensor& qkv, const HeadNormWeights& weights,
                              const HeadNormResult& saved, const AttentionShape& shape, const HeadNormGradient& dquery,
                              const HeadNormGradient& dkey);

}  // namespace orthant::model::kernels
