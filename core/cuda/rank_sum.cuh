// SPDX-License-Identifier: Apache-2.0
// The element function of the SumRows kernel. It is compiled for host and device, so that the tests without a GPU run
// the very arithmetic that the device runs and compare it with comm::reduce_rows, bit by bit.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define ORTHANT_HOST_DEVICE __host__ __device__
#else
#define ORTHANT_HOST_DEVICE
#endif

namespace orthant::cuda {

struct Bf16 {
  std::uint16_t bits;
};

ORTHANT_HOST_DEVICE inline float load(Bf16 value) {
  const std::uint32_t wide = static_cast<std::uint32_t>(value.bits) << 16;
  float result;
  memcpy(&result, &wide, sizeof result);
  return result;
}
template <class T>
ORTHANT_HOST_DEVICE T load(T value) {
  return value;
}

/// Round to nearest, ties to even; NaN stays NaN.
ORTHANT_HOST_DEVICE inline void store(Bf16& to, float value) {
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  to.bits = static_cast<std::uint16_t>(is_nan ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
template <class T>
ORTHANT_HOST_DEVICE void store(T& to, T value) {
  to = value;
}

/// out[i] = in[i] + in[count + i] + … over `rows` rows of `count` elements, in order; accumulate: out[i] + that. Acc:
/// the type of the sum, fp32 or fp64.
template <class Acc, class In, class Out>
ORTHANT_HOST_DEVICE void sum_element(const In* in, int rows, std::int64_t count, Out* out, std::int64_t i,
                                     bool accumulate) {
  Acc sum = load(in[i]);
  for (int row = 1; row < rows; ++row) sum += load(in[row * count + i]);
  if (accumulate) sum = load(out[i]) + sum;
  store(out[i], sum);
}

/// Calls `launch(Acc{}, in, out)` with pointers of the types that stand behind `in` and `out`; false if they are not
/// summed.
template <class Type, class Launch>
bool with_sum_types(const void* in, Type in_type, void* out, Type out_type, const Launch& launch) {
  if (in_type == Type::bf16 && out_type == Type::bf16) {
    launch(float{}, static_cast<const Bf16*>(in), static_cast<Bf16*>(out));
  } else if (in_type == Type::bf16 && out_type == Type::f32) {
    launch(float{}, static_cast<const Bf16*>(in), static_cast<float*>(out));
  } else if (in_type == Type::f32 && out_type == Type::f32) {
    launch(float{}, static_cast<const float*>(in), static_cast<float*>(out));
  } else if (in_type == Type::f64 && out_type == Type::f64) {
    launch(double{}, static_cast<const double*>(in), static_cast<double*>(out));
  } else {
    return false;
  }
  return true;
}

}  // namespace orthant::cuda
