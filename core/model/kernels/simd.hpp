// SPDX-License-Identifier: Apache-2.0
// Vector code for rows of elements, on ATen's vectors. A row is walked in blocks of one width; its remainder goes
// through the same code by a partial load and store. So there is no scalar tail, and an element's result depends on
// neither its offset nor the row's length. Only .cpp files of this folder include this; they are compiled without
// floating-point contraction.
#pragma once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define CPU_CAPABILITY_AVX512
#elif defined(__AVX2__) && defined(__FMA__)
#define CPU_CAPABILITY_AVX2
#endif
// Names ATen's inline namespace: its vectors must not be mistaken for those of a library compiled for another width.
#define CPU_CAPABILITY Orthant

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>

#include <ATen/Parallel.h>
#include <orthant/core/model/kernels/vector_isa.hpp>

namespace orthant::model::kernels {

template <class T>
struct Compute {
  using type = T;
};
template <>
struct Compute<at::BFloat16> {
  using type = float;
};
/// Type in which elements of type T are computed.
template <class T>
using compute_t = typename Compute<T>::type;

/// The first min(n, block size) elements at p; zero in the lanes behind them, whose memory is not touched.
template <class T>
inline Block<compute_t<T>> load(const T* p, std::int64_t n) {
  if constexpr (std::is_same_v<T, at::BFloat16>) {
    if (n >= NarrowVector::size()) return widen(p);
    at::BFloat16 lanes[NarrowVector::size()];
    NarrowVector::loadu(p, static_cast<std::int16_t>(n)).store(lanes);
    return widen(lanes);
  } else {
    using Vec = at::vec::Vectorized<T>;
    constexpr std::int64_t width = Vec::size();
    if (n >= 2 * width) return {Vec::loadu(p), Vec::loadu(p + width)};
    return {Vec::loadu(p, std::min(n, width)), Vec::loadu(p + width, std::max<std::int64_t>(n - width, 0))};
  }
}

/// Writes the first min(n, block size) lanes, rounding to T once.
template <class T>
inline void store(const Block<compute_t<T>>& block, T* p, std::int64_t n) {
  constexpr std::int64_t width = Block<compute_t<T>>::size();
  const int count = static_cast<int>(std::min(n, width));
  if constexpr (std::is_same_v<T, at::BFloat16>) {
    if (count == width) {
      narrow(block).store(p);
    } else {
      narrow(block).store(p, count);
    }
  } else if (count == width) {
    block.store(p);
  } else {
    block.store(p, count);
  }
}

/// body(offset, count) over 0..n in blocks of C; count is the block size except in the last call.
template <class C, class Body>
inline void for_blocks(std::int64_t n, const Body& body) {
  constexpr std::int64_t width = Block<C>::size();
  std::int64_t i = 0;
  for (; i + width <= n; i += width) body(i, width);
  if (i < n) body(i, n - i);
}

/// The first n lanes of the block, `fill` behind them.
template <class C>
inline Block<C> first_or(const Block<C>& block, std::int64_t n, C fill) {
  C lanes[Block<C>::size()];
  Block<C>(fill).store(lanes);
  store(block, lanes, n);
  return Block<C>::loadu(lanes);
}

/// Reduces body(offset, count) -> Block over 0..n lane by lane, then over lanes: an order that depends on n alone.
template <class C, class Combine, class Body>
inline C reduce_row(std::int64_t n, C identity, const Combine& combine, const Body& body) {
  Block<C> total(identity);
  for_blocks<C>(n, [&](std::int64_t i, std::int64_t count) {
    const auto part = body(i, count);
    const auto whole = count == Block<C>::size() ? part : first_or<C>(part, count, identity);
    total = total.binary_op(whole, combine);
  });
  return at::vec::vec_reduce_all<C>(combine, combine(total[0], total[1]));
}

template <class C, class Body>
inline C sum_row(std::int64_t n, const Body& body) {
  return reduce_row<C>(n, C(0), std::plus<at::vec::Vectorized<C>>{}, body);
}

template <class T>
inline compute_t<T> max_row(const T* p, std::int64_t n) {
  using C = compute_t<T>;
  using Vec = at::vec::Vectorized<C>;
  return reduce_row<C>(
      n, -std::numeric_limits<C>::infinity(), [](const Vec& a, const Vec& b) { return at::vec::maximum(a, b); },
      [&](std::int64_t i, std::int64_t count) { return load(p + i, count); });
}

/// body(begin, end) over 0..rows on ATen's threads; rows of at most `row_elements` elements. Rows must not share
/// results.
template <class Body>
inline void parallel_rows(std::int64_t rows, std::int64_t row_elements, const Body& body) {
  constexpr std::int64_t elements_worth_a_thread = 16384;
  at::parallel_for(0, rows,
                   std::max<std::int64_t>(1, elements_worth_a_thread / std::max<std::int64_t>(1, row_elements)), body);
}

}  // namespace orthant::model::kernels
