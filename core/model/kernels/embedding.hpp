// SPDX-License-Identifier: Apache-2.0
// Token embedding over one shard of the vocabulary, [vocab_begin, vocab_begin + V).
#pragma once

#include <ATen/core/Tensor.h>
#include <orthant/core/model/kernels/accumulate.hpp>

namespace orthant::model::kernels {

// N tokens  V vocabulary rows on this rank (may be 0)  D hidden

/// weight [V, D], tokens [N] i64. returns [N, D]; zero for tokens of other shards.
at::Tensor embedding_forward(const at::Tensor& weight, const at::Tensor& tokens, std::int64_t vocab_begin);

/// dout [N, D] into grad [V, D] fp32 (fp64 for fp64), added in token order.
void embedding_backward(const at::Tensor& dout, const at::Tensor& tokens, std::int64_t vocab_begin,
                        const at::Tensor& grad, Accumulate mode);

}  // namespace orthant::model::kernels
