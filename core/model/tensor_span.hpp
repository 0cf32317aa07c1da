// SPDX-License-Identifier: Apache-2.0
// DType as LibTorch spells it, and a tensor as the typed span that communicators carry.
#pragma once

#include <ATen/core/Tensor.h>
#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/span.hpp>

namespace orthant::model {

inline at::ScalarType scalar_type(DType type) {
  switch (type) {
    case DType::u8:
      return at::kByte;
    case DType::i64:
      return at::kLong;
    case DType::bf16:
      return at::kBFloat16;
    case DType::f32:
      return at::kFloat;
    case DType::f64:
      return at::kDouble;
  }
  throw InternalError("unknown dtype");
}

inline DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kByte:
      return DType::u8;
    case at::kLong:
      return DType::i64;
    case at::kBFloat16:
      return DType::bf16;
    case at::kFloat:
      return DType::f32;
    case at::kDouble:
      return DType::f64;
    default:
      throw InternalError("a tensor has an element type that no communicator carries");
  }
}

/// The tensor's memory; it must be contiguous and outlive the span.
inline comm::Span span_of(const at::Tensor& tensor) {
  invariant(tensor.is_contiguous(), "only contiguous tensors travel");
  return {tensor.data_ptr(), tensor.numel(), dtype_of(tensor)};
}

}  // namespace orthant::model
