// SPDX-License-Identifier: Apache-2.0
// Test values: what rank r holds at element i, per element type, with magnitudes so far apart that the order of a sum
// shows; and the serial sum in rank order that every back end is held to.
#pragma once

#include <cstdint>
#include <vector>

#include <orthant/core/comm/span.hpp>

namespace orthant::tests {

struct Bf16 {
  std::uint16_t bits = 0;
  friend bool operator==(Bf16, Bf16) = default;
};

template <class T>
struct Element {  // fp32, fp64, i64, u8: added in their own type
  using Sum = T;
  static Sum load(T value) { return value; }
  static T store(Sum value) { return value; }
};
template <>
struct Element<Bf16> {
  using Sum = float;
  static Sum load(Bf16 value) { return bf16_to_float(value.bits); }
  static Bf16 store(Sum value) { return {float_to_bf16(value)}; }
};

template <class T>
inline constexpr DType kType = DType::u8;
template <>
inline constexpr DType kType<Bf16> = DType::bf16;
template <>
inline constexpr DType kType<float> = DType::f32;
template <>
inline constexpr DType kType<double> = DType::f64;
template <>
inline constexpr DType kType<std::int64_t> = DType::i64;

template <class T>
T value_at(int rank, std::int64_t element) {
  std::uint64_t x = static_cast<std::uint64_t>(element) * 0x9e3779b97f4a7c15U +
                    static_cast<std::uint64_t>(rank + 1) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 30)) * 0x94d049bb133111ebU;
  x ^= x >> 31;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(x % 101);
  } else {
    const auto mantissa = static_cast<double>(static_cast<std::int64_t>(x >> 11)) * 0x1p-53 - 0.5;
    const auto scale = static_cast<double>(1 << (x % 12));  // bits apart from those of the mantissa
    return Element<T>::store(static_cast<typename Element<T>::Sum>(mantissa * scale));
  }
}

template <class T>
std::vector<T> values(int rank, std::int64_t begin, std::int64_t count) {
  std::vector<T> all;
  all.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) all.push_back(value_at<T>(rank, begin + i));
  return all;
}

/// The sum over ranks 0..size-1 of element i, left to right, before rounding to T.
template <class T>
typename Element<T>::Sum serial_sum(int size, std::int64_t element) {
  auto sum = Element<T>::load(value_at<T>(0, element));
  for (int r = 1; r < size; ++r) sum += Element<T>::load(value_at<T>(r, element));
  return sum;
}

template <class T>
comm::Span span_of(std::vector<T>& data) {
  return {data.data(), static_cast<std::int64_t>(data.size()), kType<T>};
}

}  // namespace orthant::tests
