// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/head_norm.hpp>

#include <ATen/ops/empty_like.h>
#include <orthant/core/model/kernels/expect.hpp>
#include <orthant/core/model/kernels/rms_norm.hpp>

namespace orthant::model::kernels {
namespace {

/// Columns of a fused row.
struct Heads {
  std::int64_t first = 0;
  std::int64_t columns = 0;

  at::Tensor of(const at::Tensor& fused) const { return fused.narrow(1, first, columns); }
  /// A head a row.
  at::Tensor rows(const at::Tensor& fused, std::int64_t head_dim) const {
    return of(fused).reshape({fused.size(0) * columns / head_dim, head_dim}).contiguous();
  }
  void put(const at::Tensor& rows, const at::Tensor& fused) const {
    of(fused).copy_(rows.view({fused.size(0), columns}));
  }
};

struct Parts {
  Heads query, key, value;
};

Parts parts_of(const at::Tensor& fused, const AttentionShape& s) {
  const auto q = s.heads * s.head_dim, k = s.kv_heads * s.head_dim;
  expect(fused, "qkv", fused.scalar_type(), {s.seq * s.batch, q + 2 * k});
  return {.query = {0, q}, .key = {q, k}, .value = {q + k, k}};
}

}  // namespace

HeadNormResult head_norm_forward(const at::Tensor& qkv, const HeadNormWeights& weights, const AttentionShape& shape,
                                 double eps) {
  const auto parts = parts_of(qkv, shape);
  HeadNormResult out{.qkv = at::empty_like(qkv)};
  const auto normalise = [&](const Heads& heads, const at::Tensor& weight) {
    auto normed = rms_norm_forward(heads.rows(qkv, shape.head_dim), weight, eps);
    heads.put(normed.y, out.qkv);
    return normed.rstd;
  };
  out.q_rstd = normalise(parts.query, weights.query);
  out.k_rstd = normalise(parts.key, weights.key);
  parts.value.of(out.qkv).copy_(parts.value.of(qkv));
  return out;
}

at::Tensor head_norm_backward(const at::Tensor& dout, const at::Tensor& qkv, const HeadNormWeights& weights,
                              const HeadNormResult& saved, const AttentionShape& shape, const HeadNormGradient& dquery,
                              const HeadNormGradient& dkey) {
  const auto parts = parts_of(dout, shape);
  auto dqkv = at::empty_like(dout);
  const auto derive = [&](const Heads& heads, const at::Tensor& weight, const at::Tensor& rstd,
                          const HeadNormGradient& gradient) {
    heads.put(rms_norm_backward(heads.rows(dout, shape.head_dim), heads.rows(qkv, shape.head_dim), weight, rstd,
                                gradient.memory, gradient.mode),
              dqkv);
  };
  derive(parts.query, weights.query, saved.q_rstd, dquery);
  derive(parts.key, weights.key, saved.k_rstd, dkey);
  parts.value.of(dqkv).copy_(parts.value.of(dout));
  return dqkv;
}

}  // namespace orthant::model::kernels
