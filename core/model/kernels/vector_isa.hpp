// SPDX-License-Identifier: Apache-2.0
// The functions for which ATen's vectors leave speed behind on AVX-512: bf16 to fp32 and back, and exp, which ATen
// calls out of line. Each has ATen's own way as the other branch. Included by simd.hpp only.
#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

namespace orthant::model::kernels {

/// Two vectors of C (float or double): as many elements as one bf16 vector holds when C is float.
template <class C>
using Block = at::vec::VectorizedN<C, 2>;
using NarrowVector = at::vec::Vectorized<at::BFloat16>;

template <class C>
inline Block<C> exp(const Block<C>& x) {
  return x.exp();
}

#if defined(CPU_CAPABILITY_AVX512)

inline Block<float> widen(const at::BFloat16* p) {
  const auto half = [](const at::BFloat16* q) {
    const auto bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q));
    return at::vec::Vectorized<float>(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)));
  };
  return {half(p), half(p + 16)};
}

/// exp to 1 ulp: x = n ln 2 + r, a polynomial in r (Cephes expf), scaled by 2^n. Overflow gives inf, underflow 0, NaN
/// stays.
inline at::vec::Vectorized<float> exp(const at::vec::Vectorized<float>& unbounded) {
  const auto set = [](float value) { return _mm512_set1_ps(value); };
  // min and max give their second operand when either is NaN.
  const __m512 x = _mm512_min_ps(set(89.0F), _mm512_max_ps(set(-104.0F), unbounded));
  const __m512 n =
      _mm512_roundscale_ps(_mm512_mul_ps(x, set(1.44269504F)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 r = _mm512_fnmadd_ps(n, set(-2.12194440e-4F), _mm512_fnmadd_ps(n, set(0.693359375F), x));
  __m512 p = _mm512_fmadd_ps(set(1.9875691500e-4F), r, set(1.3981999507e-3F));
  p = _mm512_fmadd_ps(p, r, set(8.3334519073e-3F));
  p = _mm512_fmadd_ps(p, r, set(4.1665795894e-2F));
  p = _mm512_fmadd_ps(p, r, set(1.6666665459e-1F));
  p = _mm512_fmadd_ps(p, r, set(5.0000001201e-1F));
  p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), set(1.0F));
  return _mm512_scalef_ps(p, n);
}

template <>
inline Block<float> exp(const Block<float>& x) {
  return {exp(x[0]), exp(x[1])};
}

#else

inline Block<float> widen(const at::BFloat16* p) {
  return at::vec::convert<float, 2, at::BFloat16, 1>(at::vec::VectorizedN<at::BFloat16, 1>(NarrowVector::loadu(p)));
}

#endif

/// Rounds to nearest, ties to even.
inline NarrowVector narrow(const Block<float>& x) {
#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__)
  return NarrowVector(reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(x[1], x[0])));  // also flushes subnormals
#else
  return at::vec::convert<at::BFloat16, 1, float, 2>(x);
#endif
}

}  // namespace orthant::model::kernels
