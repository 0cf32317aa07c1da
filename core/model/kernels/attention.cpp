// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/attention.hpp>

#include <cmath>

#include <ATen/ops/empty.h>
#include <orthant/core/model/kernels/causal_softmax.hpp>
#include <orthant/core/model/kernels/expect.hpp>
#include <orthant/core/model/kernels/head_layout.hpp>
#include <orthant/core/model/kernels/product.hpp>

namespace orthant::model::kernels {
namespace {

struct FusedColumns {
  HeadColumns q, k, v;
  std::int64_t count;  ///< (H + 2 G) K
};

FusedColumns fused_columns(const AttentionShape& s) {
  if (s.kv_heads <= 0 || s.heads % s.kv_heads != 0) {
    throw ShapeError("heads = " + std::to_string(s.heads) +
                     " is not divisible by kv_heads = " + std::to_string(s.kv_heads));
  }
  return {.q = {0, s.heads},
          .k = {s.heads * s.head_dim, s.kv_heads},
          .v = {(s.heads + s.kv_heads) * s.head_dim, s.kv_heads},
          .count = (s.heads + 2 * s.kv_heads) * s.head_dim};
}

double score_scale(const AttentionShape& s) { return 1.0 / std::sqrt(static_cast<double>(s.head_dim)); }

// M = B G  Q = R S stacked query rows
at::Tensor transposed(const at::Tensor& t) { return t.transpose(1, 2); }

}  // namespace

AttentionResult attention_forward(const at::Tensor& qkv, const AttentionShape& shape, const RotaryTable& rotary) {
  const auto columns = fused_columns(shape);
  expect(qkv, "qkv", qkv.scalar_type(), {shape.seq * shape.batch, columns.count});
  AttentionResult out;
  out.q = split_heads(qkv, columns.q, shape, &rotary);
  out.k = split_heads(qkv, columns.k, shape, &rotary);
  out.v = split_heads(qkv, columns.v, shape, nullptr);
  out.probabilities = batched_product(out.q, transposed(out.k));  // [M, Q, S], scores until the next line
  causal_softmax_(out.probabilities, score_scale(shape));
  out.context = at::empty({shape.seq * shape.batch, shape.heads * shape.head_dim}, qkv.options());
  merge_heads(batched_product(out.probabilities, out.v), columns.q, shape, nullptr, out.context);
  return out;
}

at::Tensor attention_backward(const at::Tensor& dcontext, const AttentionSaved& saved, const AttentionShape& shape,
                              const RotaryTable& rotary) {
  const auto columns = fused_columns(shape);
  expect(dcontext, "dcontext", saved.q.scalar_type(), {shape.seq * shape.batch, shape.heads * shape.head_dim});
  const auto dout_MQK = split_heads(dcontext, columns.q, shape, nullptr);
  auto dscores_MQS = batched_product(dout_MQK, transposed(saved.v));
  causal_softmax_backward_(dscores_MQS, saved.probabilities, score_scale(shape));
  auto dqkv = at::empty({shape.seq * shape.batch, columns.count}, dcontext.options());
  merge_heads(batched_product(dscores_MQS, saved.k), columns.q, shape, &rotary, dqkv);
  merge_heads(batched_product(transposed(dscores_MQS), saved.q), columns.k, shape, &rotary, dqkv);
  merge_heads(batched_product(transposed(saved.probabilities), dout_MQK), columns.v, shape, nullptr, dqkv);
  return dqkv;
}

}  // namespace orthant::model::kernels
