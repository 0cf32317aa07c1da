// SPDX-License-Identifier: Apache-2.0
// Element types that travel between ranks and live in flat buffers, named without LibTorch so that core/comm,
// core/stream and the pipeline executor build (and run under a thread sanitizer) without it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace orthant {

enum class DType : std::uint8_t { u8, i64, bf16, f32, f64 };

constexpr std::size_t size_of(DType type) {
  switch (type) {
    case DType::u8:
      return 1;
    case DType::bf16:
      return 2;
    case DType::f32:
      return 4;
    case DType::i64:
    case DType::f64:
      return 8;
  }
  return 0;
}

constexpr const char* name_of(DType type) {
  switch (type) {
    case DType::u8:
      return "u8";
    case DType::i64:
      return "i64";
    case DType::bf16:
      return "bf16";
    case DType::f32:
      return "fp32";
    case DType::f64:
      return "fp64";
  }
  return "?";
}

/// bf16 to fp32: exact.
inline float bf16_to_float(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  __builtin_memcpy(&value, &wide, sizeof value);
  return value;
}

/// fp32 to bf16, round to nearest, ties to even; NaN stays NaN.
inline std::uint16_t float_to_bf16(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace orthant
