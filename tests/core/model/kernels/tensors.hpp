// SPDX-License-Identifier: Apache-2.0
// What the kernel tests share: seeded tensors, comparison by norm and by bits, placing a tensor at an offset, a number
// of threads.
#pragma once

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

namespace orthant::model::kernels::test {

inline const std::vector<at::ScalarType> kTypes = {at::kFloat, at::kDouble, at::kBFloat16};

/// Norm of the difference over norm that a kernel may be off by, against fp64.
inline double tolerance(at::ScalarType type) { return type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-5 : 2e-2; }

/// Standard normal, the same numbers on every call with that seed.
inline at::Tensor normal(std::uint64_t seed, at::IntArrayRef sizes, at::ScalarType type) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble)).to(type);
}

/// Uniform integers in [low, high).
inline at::Tensor integers(std::uint64_t seed, std::int64_t low, std::int64_t high, std::int64_t count) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randint(low, high, {count}, generator, at::TensorOptions().dtype(at::kLong));
}

inline double relative_error(const at::Tensor& found, const at::Tensor& wanted) {
  EXPECT_EQ(found.sizes(), wanted.sizes());
  if (wanted.numel() == 0) return 0;
  const auto wide = wanted.to(at::kDouble);
  const double norm = wide.norm().item<double>();
  const double off = (found.to(at::kDouble) - wide).norm().item<double>();
  return norm > 0 ? off / norm : off;
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto x = a.contiguous(), y = b.contiguous();
  return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

/// A copy of `t` that starts `offset` elements into a larger buffer, whose other elements are NaN or -1.
inline at::Tensor at_offset(const at::Tensor& t, std::int64_t offset) {
  auto buffer = at::empty({t.numel() + 128}, t.options());
  if (t.is_floating_point()) {
    buffer.fill_(std::numeric_limits<double>::quiet_NaN());
  } else {
    buffer.fill_(-1);
  }
  auto placed = buffer.narrow(0, offset, t.numel()).view(t.sizes());
  placed.copy_(t);
  return placed;
}

/// ATen's threads for one scope.
class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

}  // namespace orthant::model::kernels::test
