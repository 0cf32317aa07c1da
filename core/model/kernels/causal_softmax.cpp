// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/causal_softmax.hpp>

#include <vector>

#include <orthant/core/model/kernels/composed.hpp>
#include <orthant/core/model/kernels/expect.hpp>
#include <orthant/core/model/kernels/simd.hpp>

namespace orthant::model::kernels {
namespace {

/// row[0, keys) -> softmax(scale * row). exps: scratch of `keys` elements, so that bf16 is rounded once.
template <class T>
void softmax_prefix(T* row, std::int64_t keys, compute_t<T> scale, compute_t<T>* exps) {
  using C = compute_t<T>;
  const Block<C> largest(max_row(row, keys)), scales(scale);
  const C total = sum_row<C>(keys, [&](std::int64_t i, std::int64_t n) {
    const auto e = exp<C>((load(row + i, n) - largest) * scales);
    store<C>(e, exps + i, n);
    return e;
  });
  const Block<C> inverse(C(1) / total);
  for_blocks<C>(keys, [&](std::int64_t i, std::int64_t n) { store<T>(load(exps + i, n) * inverse, row + i, n); });
}

/// d = scale * p * (d - sum(p d)) on the prefix.
template <class T>
void softmax_backward_prefix(T* d, const T* p, std::int64_t keys, compute_t<T> scale) {
  using C = compute_t<T>;
  const Block<C> dot(sum_row<C>(keys, [&](std::int64_t i, std::int64_t n) { return load(p + i, n) * load(d + i, n); }));
  const Block<C> scales(scale);
  for_blocks<C>(keys, [&](std::int64_t i, std::int64_t n) {
    store<T>((load(d + i, n) - dot) * load(p + i, n) * scales, d + i, n);
  });
}

}  // namespace

void causal_softmax_(const at::Tensor& scores, double scale) {
  const auto type = scores.scalar_type();
  expect(scores, "scores", type, {-1, -1, -1});
  if (!scores.is_cpu()) return composed::causal_softmax_(scores, scale);
  const auto seq = scores.size(2);
  visit_type(type, [&]<class T>(T) {
    using C = compute_t<T>;
    T* data = scores.mutable_data_ptr<T>();
    parallel_rows(scores.size(0) * scores.size(1), seq, [&](std::int64_t begin, std::int64_t end) {
      std::vector<C> exps(seq);
      for (auto r = begin; r < end; ++r) {
        const auto keys = r % seq + 1;
        softmax_prefix<T>(data + r * seq, keys, static_cast<C>(scale), exps.data());
        std::fill(data + r * seq + keys, data + (r + 1) * seq, T(0));
      }
    });
  });
}

void causal_softmax_backward_(const at::Tensor& dprobabilities, const at::Tensor& probabilities, double scale) {
  const auto type = probabilities.scalar_type();
  expect(probabilities, "probabilities", type, {-1, -1, -1});
  const auto seq = probabilities.size(2);
  expect(dprobabilities, "dprobabilities", type, {probabilities.size(0), probabilities.size(1), seq});
  if (!probabilities.is_cpu()) return composed::causal_softmax_backward_(dprobabilities, probabilities, scale);
  visit_type(type, [&]<class T>(T) {
    T* d = dprobabilities.mutable_data_ptr<T>();
    const T* p = probabilities.const_data_ptr<T>();
    parallel_rows(probabilities.size(0) * probabilities.size(1), seq, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) {
        const auto keys = r % seq + 1;
        softmax_backward_prefix<T>(d + r * seq, p + r * seq, keys, static_cast<compute_t<T>>(scale));
        std::fill(d + r * seq + keys, d + (r + 1) * seq, T(0));
      }
    });
  });
}

}  // namespace orthant::model::kernels
