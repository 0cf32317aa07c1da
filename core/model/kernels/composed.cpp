// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/composed.hpp>

#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <orthant/core/model/kernels/expect.hpp>

namespace orthant::model::kernels::composed {
namespace {

at::Tensor wide(const at::Tensor& t) { return t.to(compute_type(t.scalar_type())); }

at::Tensor rotate(const at::Tensor& x_BHSK, const RotaryTable& rotary, double sign) {
  const auto seq = x_BHSK.size(2);
  const auto cos = rotary.cos.narrow(0, 0, seq), sin = rotary.sin.narrow(0, 0, seq) * sign;
  const auto halves = x_BHSK.chunk(2, -1);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
}

at::Tensor above_diagonal(const at::Tensor& scores_MQS) {
  const auto seq = scores_MQS.size(2);
  const auto positions = at::arange(scores_MQS.size(1), scores_MQS.options().dtype(at::kLong)).remainder(seq);
  return at::arange(seq, positions.options()).unsqueeze(0) > positions.unsqueeze(1);  // [Q, S]
}

/// Rows of tokens inside this shard, and their index (0 elsewhere).
struct Local {
  at::Tensor inside;
  at::Tensor index;
};
Local localise(const at::Tensor& tokens, std::int64_t vocab_begin, std::int64_t vocab) {
  const auto local = tokens - vocab_begin;
  auto inside = (tokens >= 0).logical_and(local >= 0).logical_and(local < vocab);
  return {inside, at::where(inside, local, at::zeros({}, local.options()))};
}

}  // namespace

RmsNormResult rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const auto x_wide = wide(x);
  auto rstd = at::rsqrt((x_wide * x_wide).mean(1) + eps);
  return {(x_wide * rstd.unsqueeze(1) * wide(weight)).to(x.scalar_type()), rstd};
}

at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, const at::Tensor& dweight, Accumulate mode) {
  const auto dy_wide = wide(dy), x_hat = wide(x) * rstd.unsqueeze(1), dx_hat = dy_wide * wide(weight);
  accumulate(dweight, (dy_wide * x_hat).sum(0), mode);
  return ((dx_hat - x_hat * (dx_hat * x_hat).mean(1, true)) * rstd.unsqueeze(1)).to(x.scalar_type());
}

at::Tensor swiglu_forward(const at::Tensor& gate_up) {
  const auto halves = wide(gate_up).chunk(2, 1);
  return (halves[0] * at::sigmoid(halves[0]) * halves[1]).to(gate_up.scalar_type());
}

at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up) {
  const auto halves = wide(gate_up).chunk(2, 1);
  const auto dy_wide = wide(dy), sigma = at::sigmoid(halves[0]);
  return at::cat({dy_wide * halves[1] * sigma * (1 + halves[0] * (1 - sigma)), dy_wide * halves[0] * sigma}, 1)
      .to(dy.scalar_type());
}

at::Tensor split_heads(const at::Tensor& fused, const HeadColumns& columns, const AttentionShape& s,
                       const RotaryTable* rotary) {
  auto heads_BHSK = wide(fused.narrow(1, columns.first, columns.heads * s.head_dim))
                        .reshape({s.seq, s.batch, columns.heads, s.head_dim})
                        .permute({1, 2, 0, 3});
  if (rotary) heads_BHSK = rotate(heads_BHSK, *rotary, 1);
  return heads_BHSK.to(fused.scalar_type())
      .reshape({s.batch * s.kv_heads, columns.heads / s.kv_heads * s.seq, s.head_dim})
      .contiguous();
}

void merge_heads(const at::Tensor& split, const HeadColumns& columns, const AttentionShape& s,
                 const RotaryTable* rotary, const at::Tensor& fused) {
  auto heads_BHSK = wide(split).view({s.batch, columns.heads, s.seq, s.head_dim});
  if (rotary) heads_BHSK = rotate(heads_BHSK, *rotary, -1);
  fused.narrow(1, columns.first, columns.heads * s.head_dim)
      .copy_(heads_BHSK.permute({2, 0, 1, 3}).reshape({s.seq * s.batch, columns.heads * s.head_dim}));
}

void causal_softmax_(const at::Tensor& scores, double scale) {
  const auto masked =
      (wide(scores) * scale).masked_fill(above_diagonal(scores), -std::numeric_limits<double>::infinity());
  scores.copy_(at::softmax(masked, 2));
}

void causal_softmax_backward_(const at::Tensor& dprobabilities, const at::Tensor& probabilities, double scale) {
  const auto p = wide(probabilities);
  const auto d = wide(dprobabilities).masked_fill(above_diagonal(probabilities), 0);
  dprobabilities.copy_((d - (p * d).sum(2, true)) * p * scale);
}

at::Tensor row_max(const at::Tensor& logits) {
  if (logits.size(1) > 0) return at::amax(wide(logits), 1);
  return at::full({logits.size(0)}, -std::numeric_limits<double>::infinity(), wide(logits).options());
}

at::Tensor shard_sums(const at::Tensor& logits, const at::Tensor& max, const at::Tensor& targets,
                      std::int64_t vocab_begin) {
  if (logits.size(1) == 0) return at::zeros({2, logits.size(0)}, max.options());
  const auto shifted = wide(logits) - max.unsqueeze(1);
  const auto [inside, index] = localise(targets, vocab_begin, logits.size(1));
  const auto term = shifted.gather(1, index.unsqueeze(1)).squeeze(1);
  return at::stack({shifted.exp().sum(1), at::where(inside, term, at::zeros({}, term.options()))});
}

at::Tensor sum_losses(const at::Tensor& sum_exp, const at::Tensor& target_term, const at::Tensor& targets) {
  const auto losses = sum_exp.to(at::kDouble).log() - target_term.to(at::kDouble);
  return at::where(targets >= 0, losses, at::zeros({}, losses.options())).sum().to(sum_exp.scalar_type());
}

at::Tensor sum_z_losses(const at::Tensor& max, const at::Tensor& sum_exp, const at::Tensor& targets) {
  const auto losses = (max.to(at::kDouble) + sum_exp.to(at::kDouble).log()).pow(2);
  return at::where(targets >= 0, losses, at::zeros({}, losses.options())).sum().to(sum_exp.scalar_type());
}

void cross_entropy_backward_(const at::Tensor& logits, const at::Tensor& max, const at::Tensor& sum_exp,
                             const at::Tensor& targets, std::int64_t vocab_begin, double scale, double z_loss) {
  if (logits.size(1) == 0) return;
  auto gradient = (wide(logits) - max.unsqueeze(1)).exp() / sum_exp.unsqueeze(1);
  gradient = gradient * (1 + 2 * z_loss * (max + sum_exp.log())).unsqueeze(1);
  const auto [inside, index] = localise(targets, vocab_begin, logits.size(1));
  gradient.scatter_add_(1, index.unsqueeze(1), -inside.to(gradient.scalar_type()).unsqueeze(1));
  logits.copy_((gradient * scale).masked_fill((targets < 0).unsqueeze(1), 0));
}

at::Tensor embedding_forward(const at::Tensor& weight, const at::Tensor& tokens, std::int64_t vocab_begin) {
  if (weight.size(0) == 0) return at::zeros({tokens.size(0), weight.size(1)}, weight.options());
  const auto [inside, index] = localise(tokens, vocab_begin, weight.size(0));
  return weight.index_select(0, index).masked_fill(inside.logical_not().unsqueeze(1), 0);
}

void embedding_backward(const at::Tensor& dout, const at::Tensor& tokens, std::int64_t vocab_begin,
                        const at::Tensor& grad, Accumulate mode) {
  if (mode == Accumulate::overwrite) grad.zero_();
  if (grad.size(0) == 0) return;
  const auto [inside, index] = localise(tokens, vocab_begin, grad.size(0));
  // index_put_ with accumulation sorts on CUDA, so its order is fixed; index_add_ uses atomics there.
  at::Tensor out = grad;
  out.index_put_({index}, wide(dout).masked_fill(inside.logical_not().unsqueeze(1), 0), true);
}

void accumulate(const at::Tensor& grad, const at::Tensor& value, Accumulate mode) {
  if (mode == Accumulate::overwrite) {
    grad.copy_(value);
  } else {
    grad.add_(value);
  }
}

}  // namespace orthant::model::kernels::composed
