// SPDX-License-Identifier: Apache-2.0
// Cross-entropy over a vocabulary that may be cut into shards: each function works on one shard's logits, and between
// them the caller combines the small per-row results (max of row_max, sum of shard_sums). One shard is the dense case.
#pragma once

#include <ATen/core/Tensor.h>

namespace orthant::model::kernels {

// N rows  V vocabulary rows on this rank (may be 0)
// logits [N, V]; per-row values are fp32 (fp64 for fp64); targets [N] i64, global token ids, -1: row not counted

/// returns [N]: largest logit of this shard, -inf if V is 0.
at::Tensor row_max(const at::Tensor& logits);

/// max [N] over all shards; vocab_begin: first token of this shard.
/// returns [2, N]: sum of exp(logit - max) over this shard; logit - max of the target where this shard has it, else 0.
at::Tensor shard_sums(const at::Tensor& logits, const at::Tensor& max, const at::Tensor& targets,
                      std::int64_t vocab_begin);

/// sum_exp, target_term [N]: both rows of shard_sums, summed over shards.
/// returns scalar (type of sum_exp): sum over counted rows of log(sum_exp) - target_term, added in fp64 in row order.
at::Tensor sum_losses(const at::Tensor& sum_exp, const at::Tensor& target_term, const at::Tensor& targets);

/// returns scalar (type of sum_exp): sum over counted rows of log(Z)^2, Z = the whole row's sum of exp(logit). Source:
/// Chowdhery et al. 2022 (PaLM), section 5.
at::Tensor sum_z_losses(const at::Tensor& max, const at::Tensor& sum_exp, const at::Tensor& targets);

/// Turns logits into scale * d loss / d logits in place, 0 in rows not counted, of the loss cross-entropy + z_loss
/// log(Z)^2: softmax (1 + 2 z_loss log(Z)) - onehot.
void cross_entropy_backward_(const at::Tensor& logits, const at::Tensor& max, const at::Tensor& sum_exp,
                             const at::Tensor& targets, std::int64_t vocab_begin, double scale, double z_loss);

}  // namespace orthant::model::kernels
