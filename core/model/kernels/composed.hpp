// SPDX-License-Identifier: Apache-2.0
// The kernels as plain ATen operations, for tensors on any device: what the vector kernels hand over to when a tensor
// is not on the CPU, and what they are tested against. Arguments are as in the headers of the same names, already
// checked.
#pragma once

#include <ATen/core/Tensor.h>
#include <orthant/core/model/kernels/accumulate.hpp>
#include <orthant/core/model/kernels/attention.hpp>
#include <orthant/core/model/kernels/head_layout.hpp>
#include <orthant/core/model/kernels/rms_norm.hpp>

namespace orthant::model::kernels::composed {

RmsNormResult rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps);
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, const at::Tensor& dweight, Accumulate mode);

at::Tensor swiglu_forward(const at::Tensor& gate_up);
at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up);

at::Tensor split_heads(const at::Tensor& fused, const HeadColumns& columns, const AttentionShape& shape,
                       const RotaryTable* rotary);
void merge_heads(const at::Tensor& split, const HeadColumns& columns, const AttentionShape& shape,
                 const RotaryTable* rotary, const at::Tensor& fused);
void causal_softmax_(const at::Tensor& scores, double scale);
void causal_softmax_backward_(const at::Tensor& dprobabilities, const at::Tensor& probabilities, double scale);

at::Tensor row_max(const at::Tensor& logits);
at::Tensor shard_sums(const at::Tensor& logits, const at::Tensor& max, const at::Tensor& targets,
                      std::int64_t vocab_begin);
at::Tensor sum_losses(const at::Tensor& sum_exp, const at::Tensor& target_term, const at::Tensor& targets);
at::Tensor sum_z_losses(const at::Tensor& max, const at::Tensor& sum_exp, const at::Tensor& targets);
void cross_entropy_backward_(const at::Tensor& logits, const at::Tensor& max, const at::Tensor& sum_exp,
                             const at::Tensor& targets, std::int64_t vocab_begin, double scale, double z_loss);

at::Tensor embedding_forward(const at::Tensor& weight, const at::Tensor& tokens, std::int64_t vocab_begin);
void embedding_backward(const at::Tensor& dout, const at::Tensor& tokens, std::int64_t vocab_begin,
                        const at::Tensor& grad, Accumulate mode);

/// grad (+)= value, in the type of grad.
void accumulate(const at::Tensor& grad, const at::Tensor& value, Accumulate mode);

}  // namespace orthant::model::kernels::composed
