// SPDX-License-Identifier: Apache-2.0
// Typed spans: what collectives move. Views: trivially copyable, passed by value, the memory stays with its owner and
// must live until the operation's Work is done.
#pragma once

#include <cstdint>

#include <orthant/core/base/dtype.hpp>

namespace orthant::comm {

struct Span {
  void* data = nullptr;
  std::int64_t count = 0;  ///< elements
  DType type = DType::f32;
  std::size_t bytes() const { return static_cast<std::size_t>(count) * size_of(type); }
};

struct ConstSpan {
  const void* data = nullptr;
  std::int64_t count = 0;
  DType type = DType::f32;
  ConstSpan() = default;
  ConstSpan(const void* d, std::int64_t n, DType t) : data(d), count(n), type(t) {}
  ConstSpan(Span s) : data(s.data), count(s.count), type(s.type) {}  // NOLINT: a Span is readable
  std::size_t bytes() const { return static_cast<std::size_t>(count) * size_of(type); }
};

}  // namespace orthant::comm
