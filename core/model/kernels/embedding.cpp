// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/embedding.hpp>

#include <ATen/ops/empty.h>
#include <orthant/core/model/kernels/composed.hpp>
#include <orthant/core/model/kernels/expect.hpp>
#include <orthant/core/model/kernels/simd.hpp>

namespace orthant::model::kernels {

at::Tensor embedding_forward(const at::Tensor& weight, const at::Tensor& tokens, std::int64_t vocab_begin) {
  expect(weight, "weight", weight.scalar_type(), {-1, -1});
  expect(tokens, "tokens", at::kLong, {-1});
  if (!weight.is_cpu()) return composed::embedding_forward(weight, tokens, vocab_begin);
  const auto rows = tokens.size(0), vocab = weight.size(0), dim = weight.size(1);
  auto out = at::empty({rows, dim}, weight.options());
  visit_type(weight.scalar_type(), [&]<class T>(T) {
    const T* table = weight.const_data_ptr<T>();
    const auto* token = tokens.const_data_ptr<std::int64_t>();
    T* out_data = out.mutable_data_ptr<T>();
    parallel_rows(rows, dim, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) {
        const auto at_row = token[r] - vocab_begin;
        if (at_row >= 0 && at_row < vocab) {
          std::copy_n(table + at_row * dim, dim, out_data + r * dim);
        } else {
          std::fill_n(out_data + r * dim, dim, T(0));
        }
      }
    });
  });
  return out;
}

void embedding_backward(const at::Tensor& dout, const at::Tensor& tokens, std::int64_t vocab_begin,
                        const at::Tensor& grad, Accumulate mode) {
  const auto type = dout.scalar_type();
  expect(tokens, "tokens", at::kLong, {-1});
  expect(grad, "grad", compute_type(type), {-1, -1});
  const auto rows = tokens.size(0), vocab = grad.size(0), dim = grad.size(1);
  expect(dout, "dout", type, {rows, dim});
  if (!dout.is_cpu()) return composed::embedding_backward(dout, tokens, vocab_begin, grad, mode);
  if (mode == Accumulate::overwrite) grad.zero_();
  visit_type(type, [&]<class T>(T) {
    using C = compute_t<T>;
    const T* dout_data = dout.const_data_ptr<T>();
    const auto* token = tokens.const_data_ptr<std::int64_t>();
    C* grad_data = grad.mutable_data_ptr<C>();
    // Threads own columns: each sees all tokens, in their order.
    parallel_rows(dim, rows, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const auto at_row = token[r] - vocab_begin;
        if (at_row < 0 || at_row >= vocab) continue;
        C* sum = grad_data + at_row * dim + begin;
        const T* part = dout_data + r * dim + begin;
        for_blocks<C>(end - begin, [&](std::int64_t i, std::int64_t n) {
          store<C>(load<C>(sum + i, n) + load(part + i, n), sum + i, n);
        });
      }
    });
  });
}

}  // namespace orthant::model::kernels
