// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/attention.hpp>

#include <cmath>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <orthant/core/base/error.hpp>

#include "tensors.hpp"

namespace orthant::model::kernels::test {
namespace {

/// Hugging Face's way: cos and sin of all K columns, x * cos + rotate_half(x) * sin.
at::Tensor rotate_half(const at::Tensor& x_BHSK, double theta) {
  const auto seq = x_BHSK.size(2), dim = x_BHSK.size(3);
  const auto exact = at::TensorOptions().dtype(at::kDouble);
  const auto frequency = at::arange(0, dim, 2, exact).mul(-std::log(theta) / static_cast<double>(dim)).exp();
  const auto half_angle = at::arange(seq, exact).unsqueeze(1) * frequency;
  const auto angle = at::cat({half_angle, half_angle}, 1);
  const auto halves = x_BHSK.chunk(2, -1);
  return x_BHSK * angle.cos() + at::cat({-halves[1], halves[0]}, -1) * angle.sin();
}

at::Tensor oracle(const at::Tensor& qkv, const AttentionShape& s, double theta) {
  const auto heads = [&](std::int64_t first, std::int64_t count) {
    return qkv.narrow(1, first * s.head_dim, count * s.head_dim)
        .view({s.seq, s.batch, count, s.head_dim})
        .permute({1, 2, 0, 3});
  };
  const auto share = s.heads / s.kv_heads;
  const auto q = rotate_half(heads(0, s.heads), theta);
  const auto k = rotate_half(heads(s.heads, s.kv_heads), theta).repeat_interleave(share, 1);
  const auto v = heads(s.heads + s.kv_heads, s.kv_heads).repeat_interleave(share, 1);
  const auto mask = at::ones({s.seq, s.seq}, at::TensorOptions().dtype(at::kBool)).triu(1);
  const auto scores = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(s.head_dim));
  const auto p = at::softmax(scores.masked_fill(mask, -std::numeric_limits<double>::infinity()), -1);
  return at::matmul(p, v).permute({2, 0, 1, 3}).reshape({s.seq * s.batch, s.heads * s.head_dim});
}

const std::vector<AttentionShape> kShapes = {
    {.seq = 1, .batch = 1, .heads = 1, .kv_heads = 1, .head_dim = 4},
    {.seq = 5, .batch = 3, .heads = 2, .kv_heads = 1, .head_dim = 6},
    {.seq = 33, .batch = 1, .heads = 6, .kv_heads = 2, .head_dim = 4},
    {.seq = 33, .batch = 3, .heads = 3, .kv_heads = 3, .head_dim = 6},
    {.seq = 70, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 66},
};

TEST(Attention, MatchesAutogradOfItsDefinition) {
  for (const auto type : kTypes) {
    for (const auto& s : kShapes) {
      const auto qkv = normal(1, {s.seq * s.batch, (s.heads + 2 * s.kv_heads) * s.head_dim}, type);
      const auto dcontext = normal(2, {s.seq * s.batch, s.heads * s.head_dim}, type);
      auto exact = qkv.to(at::kDouble, false, true).requires_grad_();
      const auto wanted = oracle(exact, s, 100.0);
      wanted.backward(dcontext.to(at::kDouble));

      const auto rotary = rotary_table(s.seq + 3, s.head_dim, 100.0, qkv.options());
      const auto found = attention_forward(qkv, s, rotary);
      const double limit = type == at::kDouble ? 1e-13 : tolerance(type);
      EXPECT_LT(relative_error(found.context, wanted.detach()), limit) << at::toString(type) << " seq " << s.seq;
      EXPECT_LT(relative_error(attention_backward(dcontext, found, s, rotary), exact.grad()), limit)
          << at::toString(type) << " seq " << s.seq;
    }
  }
}

TEST(Attention, APositionDependsOnNothingBehindIt) {
  const AttentionShape s{.seq = 17, .batch = 2, .heads = 2, .kv_heads = 1, .head_dim = 6};
  for (const auto type : kTypes) {
    const auto qkv = normal(1, {34, 24}, type), rotary_like = normal(1, {1}, type);
    const auto rotary = rotary_table(17, 6, 100.0, rotary_like.options());
    auto changed = qkv.clone();
    changed.narrow(0, 20, 14).fill_(7);  // positions 10 and up
    EXPECT_TRUE(same_bits(attention_forward(qkv, s, rotary).context.narrow(0, 0, 20),
                          attention_forward(changed, s, rotary).context.narrow(0, 0, 20)));
  }
}

TEST(Attention, RejectsWhatDoesNotFit) {
  const auto qkv = normal(1, {10, 24}, at::kFloat);
  const AttentionShape s{.seq = 10, .batch = 1, .heads = 2, .kv_heads = 1, .head_dim = 6};
  EXPECT_NO_THROW(attention_forward(qkv, s, rotary_table(10, 6, 1e4, qkv.options())));
  EXPECT_THROW(attention_forward(qkv, s, rotary_table(9, 6, 1e4, qkv.options())), ShapeError);
  EXPECT_THROW(attention_forward(qkv, {.seq = 10, .batch = 1, .heads = 3, .kv_heads = 2, .head_dim = 6}, {}),
               ShapeError);
  EXPECT_THROW(rotary_table(10, 5, 1e4, qkv.options()), ShapeError);
}

}  // namespace
}  // namespace orthant::model::kernels::test
