// SPDX-License-Identifier: Apache-2.0
// Matrix products. ATen's, but for bf16 on a CPU that has no bf16 multiplier: LibTorch's own fallback is 5 to 60 times
// slower than fp32 there, so blocks of both factors are widened to fp32 and multiplied as such.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <orthant/core/model/kernels/accumulate.hpp>

namespace orthant::model::kernels {

// M rows  I inner  C columns  B batch

/// a [M, I] b [I, C], either of them transposed or not -> [M, C] of their type, rounded to it once.
at::Tensor product(const at::Tensor& a, const at::Tensor& b);
/// The same into `out` [M, C], contiguous.
void product_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b);
/// a [B, M, I] b [B, I, C] -> [B, M, C].
at::Tensor batched_product(const at::Tensor& a, const at::Tensor& b);

/// Whether products of such tensors are widened, by blocks, in scratch memory of the thread.
bool widens(at::ScalarType type, at::DeviceType device = at::kCPU);
/// Of a thread that widens.
std::int64_t widening_scratch_bytes();
/// out [M, C] bf16 or fp32 (=, or in fp32 +=) a b, for bf16 factors on the CPU. The sum over I is taken in pieces of a
/// fixed length, in order.
void widened_product(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, Accumulate mode);

}  // namespace orthant::model::kernels
