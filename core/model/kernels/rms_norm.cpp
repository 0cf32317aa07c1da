// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/rms_norm.hpp>

#include <cmath>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <orthant/core/model/kernels/composed.hpp>
#include <orthant/core/model/kernels/expect.hpp>
#include <orthant/core/model/kernels/simd.hpp>

namespace orthant::model::kernels {
namespace {

template <class T>
void forward_row(const T* x, const compute_t<T>* weight, T* y, std::int64_t dim, compute_t<T> rstd) {
  using C = compute_t<T>;
  const Block<C> scale(rstd);
  for_blocks<C>(
      dim, [&](std::int64_t i, std::int64_t n) { store<T>(load(x + i, n) * scale * load(weight + i, n), y + i, n); });
}

/// dx = rstd * (dy w - x * rstd^2 * mean(dy w x)); dweight_part += dy x rstd.
template <class T>
void backward_row(const T* dy, const T* x, const compute_t<T>* weight, T* dx, compute_t<T>* dweight_part,
                  std::int64_t dim, compute_t<T> rstd) {
  using C = compute_t<T>;
  const C dot = sum_row<C>(
      dim, [&](std::int64_t i, std::int64_t n) { return load(dy + i, n) * load(weight + i, n) * load(x + i, n); });
  const Block<C> along(dot / static_cast<C>(dim) * rstd * rstd * rstd), scale(rstd);
  for_blocks<C>(dim, [&](std::int64_t i, std::int64_t n) {
    const auto dy_i = load(dy + i, n), x_i = load(x + i, n);
    store<T>(dy_i * load(weight + i, n) * scale - x_i * along, dx + i, n);
    store<C>(load<C>(dweight_part + i, n) + dy_i * x_i * scale, dweight_part + i, n);
  });
}

/// grad (+)= sum of the partials' rows, in row order. partials [P, D].
template <class C>
void sum_partials(const C* partials, std::int64_t count, std::int64_t dim, C* grad, Accumulate mode) {
  const Block<C> zero(C(0));
  for_blocks<C>(dim, [&](std::int64_t i, std::int64_t n) {
    auto total = zero;
    for (std::int64_t p = 0; p < count; ++p) total = total + load(partials + p * dim + i, n);
    store<C>(mode == Accumulate::add ? load(grad + i, n) + total : total, grad + i, n);
  });
}

}  // namespace

RmsNormResult rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const auto type = x.scalar_type();
  expect(x, "x", type, {-1, -1});
  expect(weight, "weight", type, {x.size(1)});
  if (!x.is_cpu()) return composed::rms_norm_forward(x, weight, eps);
  const auto rows = x.size(0), dim = x.size(1);
  const auto wide_weight = weight.to(compute_type(type));  // once, not in every row
  RmsNormResult result{at::empty_like(x), at::empty({rows}, x.options().dtype(compute_type(type)))};
  visit_type(type, [&]<class T>(T) {
    using C = compute_t<T>;
    const T* x_data = x.const_data_ptr<T>();
    const C* weight_data = wide_weight.const_data_ptr<C>();
    T* y = result.y.mutable_data_ptr<T>();
    C* rstd = result.rstd.mutable_data_ptr<C>();
    parallel_rows(rows, dim, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) {
        const T* row = x_data + r * dim;
        const C squares =
            sum_row<C>(dim, [&](std::int64_t i, std::int64_t n) { return load(row + i, n) * load(row + i, n); });
        rstd[r] = C(1) / std::sqrt(squares / static_cast<C>(dim) + static_cast<C>(eps));
        forward_row(row, weight_data, y + r * dim, dim, rstd[r]);
      }
    });
  });
  return result;
}

at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, const at::Tensor& dweight, Accumulate mode) {
  const auto type = x.scalar_type();
  expect(x, "x", type, {-1, -1});
  const auto rows = x.size(0), dim = x.size(1);
  expect(dy, "dy", type, {rows, dim});
  expect(weight, "weight", type, {dim});
  expect(rstd, "rstd", compute_type(type), {rows});
  expect(dweight, "dweight", compute_type(type), {dim});
  if (!x.is_cpu()) return composed::rms_norm_backward(dy, x, weight, rstd, dweight, mode);
  const auto wide_weight = weight.to(compute_type(type));
  const auto partial_count = at::divup(rows, kRowsPerPartial);
  const auto partials = at::empty({partial_count, dim}, dweight.options());
  auto dx = at::empty_like(x);
  visit_type(type, [&]<class T>(T) {
    using C = compute_t<T>;
    const T* dy_data = dy.const_data_ptr<T>();
    const T* x_data = x.const_data_ptr<T>();
    const C* weight_data = wide_weight.const_data_ptr<C>();
    const C* rstd_data = rstd.const_data_ptr<C>();
    T* dx_data = dx.mutable_data_ptr<T>();
    C* partial_data = partials.mutable_data_ptr<C>();
    parallel_rows(partial_count, dim * kRowsPerPartial, [&](std::int64_t begin, std::int64_t end) {
      for (auto p = begin; p < end; ++p) {
        C* part = partial_data + p * dim;
        std::fill_n(part, dim, C(0));
        for (auto r = p * kRowsPerPartial; r < std::min(rows, (p + 1) * kRowsPerPartial); ++r) {
          backward_row(dy_data + r * dim, x_data + r * dim, weight_data, dx_data + r * dim, part, dim, rstd_data[r]);
        }
      }
    });
    sum_partials(partial_data, partial_count, dim, dweight.mutable_data_ptr<C>(), mode);
  });
  return dx;
}

}  // namespace orthant::model::kernels
