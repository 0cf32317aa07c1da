// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/swiglu.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <orthant/core/model/kernels/composed.hpp>
#include <orthant/core/model/kernels/expect.hpp>
#include <orthant/core/model/kernels/simd.hpp>

namespace orthant::model::kernels {
namespace {

template <class C>
Block<C> sigmoid(const Block<C>& x) {
  const Block<C> one(C(1));
  return one / (one + exp<C>(x.neg()));
}

template <class T>
void forward_row(const T* gate, const T* up, T* y, std::int64_t ffn) {
  using C = compute_t<T>;
  for_blocks<C>(ffn, [&](std::int64_t i, std::int64_t n) {
    const auto gate_i = load(gate + i, n);
    store<T>(gate_i * sigmoid<C>(gate_i) * load(up + i, n), y + i, n);
  });
}

template <class T>
void backward_row(const T* dy, const T* gate, const T* up, T* dgate, T* dup, std::int64_t ffn) {
  using C = compute_t<T>;
  const Block<C> one(C(1));
  for_blocks<C>(ffn, [&](std::int64_t i, std::int64_t n) {
    const auto dy_i = load(dy + i, n), gate_i = load(gate + i, n);
    const auto sigma = sigmoid<C>(gate_i);
    store<T>(dy_i * load(up + i, n) * sigma * (one + gate_i * (one - sigma)), dgate + i, n);
    store<T>(dy_i * gate_i * sigma, dup + i, n);
  });
}

std::int64_t ffn_of(const at::Tensor& gate_up) {
  expect(gate_up, "gate_up", gate_up.scalar_type(), {-1, -1});
  if (gate_up.size(1) % 2 != 0)
    throw ShapeError("gate_up has an odd number of columns; wanted gate and up side by side");
  return gate_up.size(1) / 2;
}

}  // namespace

at::Tensor swiglu_forward(const at::Tensor& gate_up) {
  const auto rows = gate_up.size(0), ffn = ffn_of(gate_up);
  if (!gate_up.is_cpu()) return composed::swiglu_forward(gate_up);
  auto y = at::empty({rows, ffn}, gate_up.options());
  visit_type(gate_up.scalar_type(), [&]<class T>(T) {
    const T* in = gate_up.const_data_ptr<T>();
    T* out = y.mutable_data_ptr<T>();
    parallel_rows(rows, ffn, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) forward_row(in + r * 2 * ffn, in + r * 2 * ffn + ffn, out + r * ffn, ffn);
    });
  });
  return y;
}

at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up) {
  const auto rows = gate_up.size(0), ffn = ffn_of(gate_up);
  expect(dy, "dy", gate_up.scalar_type(), {rows, ffn});
  if (!dy.is_cpu()) return composed::swiglu_backward(dy, gate_up);
  auto dgate_up = at::empty_like(gate_up);
  visit_type(dy.scalar_type(), [&]<class T>(T) {
    const T* dy_data = dy.const_data_ptr<T>();
    const T* in = gate_up.const_data_ptr<T>();
    T* out = dgate_up.mutable_data_ptr<T>();
    parallel_rows(rows, 2 * ffn, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) {
        const T* gate = in + r * 2 * ffn;
        T* dgate = out + r * 2 * ffn;
        backward_row(dy_data + r * ffn, gate, gate + ffn, dgate, dgate + ffn, ffn);
      }
    });
  });
  return dgate_up;
}

}  // namespace orthant::model::kernels
