// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/product.hpp>

#include <algorithm>
#include <memory>

#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <orthant/core/model/kernels/expect.hpp>

namespace orthant::model::kernels {
namespace {

// Of a block: large enough for the product to cost far more than the widening, small enough for the caches.
constexpr std::int64_t kRows = 512;
constexpr std::int64_t kInner = 512;
constexpr std::int64_t kColumns = 1024;

bool multiplies_bf16() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512bf16") != 0;
  return has;
#else
  return true;
#endif
}

struct Scratch {
  std::unique_ptr<float[]> a{new float[kRows * kInner]};
  std::unique_ptr<float[]> b{new float[kInner * kColumns]};
  std::unique_ptr<float[]> out{new float[kRows * kColumns]};
};

at::Tensor matrix(float* memory, std::int64_t rows, std::int64_t columns) {
  return at::from_blob(memory, {rows, columns}, at::TensorOptions(at::kFloat));
}

/// As fp32 in `memory`, in the order in which the block lies, so that it is read and written in one run.
at::Tensor widened(const at::Tensor& block, float* memory) {
  const bool transposed = block.stride(0) == 1 && block.stride(1) != 1;
  const auto source = transposed ? block.t() : block;
  auto wide = matrix(memory, source.size(0), source.size(1));
  wide.copy_(source);
  return transposed ? wide.t() : wide;
}

/// body(begin, length) over [0, total) in steps.
template <class Body>
void in_steps(std::int64_t total, std::int64_t step, const Body& body) {
  for (std::int64_t begin = 0; begin < total; begin += step) body(begin, std::min(step, total - begin));
}

}  // namespace

bool widens(at::ScalarType type, at::DeviceType device) {
  return type == at::kBFloat16 && device == at::kCPU && !multiplies_bf16();
}

std::int64_t widening_scratch_bytes() {
  return (kRows * kInner + kInner * kColumns + kRows * kColumns) * static_cast<std::int64_t>(sizeof(float));
}

void widened_product(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, Accumulate mode) {
  thread_local Scratch scratch;
  const bool sums_in_place = out.scalar_type() == at::kFloat;
  if (a.size(1) == 0 && mode == Accumulate::overwrite) out.zero_();
  in_steps(a.size(0), kRows, [&](std::int64_t row, std::int64_t rows) {
    in_steps(b.size(1), kColumns, [&](std::int64_t column, std::int64_t columns) {
      const auto block = out.narrow(0, row, rows).narrow(1, column, columns);
      auto sum = sums_in_place ? block : matrix(scratch.out.get(), rows, columns);
      in_steps(a.size(1), kInner, [&](std::int64_t inner, std::int64_t length) {
        const auto wide_a = widened(a.narrow(0, row, rows).narrow(1, inner, length), scratch.a.get());
        const auto wide_b = widened(b.narrow(0, inner, length).narrow(1, column, columns), scratch.b.get());
        const bool adds = inner > 0 || (sums_in_place && mode == Accumulate::add);
        at::addmm_out(sum, sum, wide_a, wide_b, adds ? 1 : 0);
      });
      if (!sums_in_place && a.size(1) > 0) block.copy_(sum);
    });
  });
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  auto out = at::empty({a.size(0), b.size(1)}, a.options());
  product_into(out, a, b);
  return out;
}

void product_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  if (widens(a.scalar_type(), a.device().type())) return widened_product(out, a, b, Accumulate::overwrite);
  at::Tensor target = out;
  at::mm_out(target, a, b);
}

at::Tensor batched_product(const at::Tensor& a, const at::Tensor& b) {
  if (!widens(a.scalar_type(), a.device().type())) return at::bmm(a, b);
  auto out = at::empty({a.size(0), a.size(1), b.size(2)}, a.options());
  for (std::int64_t i = 0; i < a.size(0); ++i) widened_product(out[i], a[i], b[i], Accumulate::overwrite);
  return out;
}

}  // namespace orthant::model::kernels
