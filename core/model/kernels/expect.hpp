// SPDX-License-Identifier: Apache-2.0
// The one shape check of the kernels, and the step from an element type at run time to a C++ type.
#pragma once

#include <initializer_list>

#include <ATen/core/Tensor.h>
#include <orthant/core/base/error.hpp>

namespace orthant::model::kernels {

/// Throws  ShapeError unless `t` is contiguous, of that type and of these sizes (-1: any).
void expect(const at::Tensor& t, const char* name, at::ScalarType type, std::initializer_list<std::int64_t> sizes);

/// Type in which elements of `type` are computed, summed and kept in gradient buffers: fp32 for fp32 and bf16, fp64 for
/// fp64.
inline at::ScalarType compute_type(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

/// body(T{}) with T = float, double or at::BFloat16.
/// Throws  ShapeError for any other type.
template <class Body>
decltype(auto) visit_type(at::ScalarType type, const Body& body) {
  switch (type) {
    case at::kFloat:
      return body(float{});
    case at::kDouble:
      return body(double{});
    case at::kBFloat16:
      return body(at::BFloat16{});
    default:
      throw ShapeError(std::string("kernels take fp32, fp64 or bf16, not ") + at::toString(type));
  }
}

}  // namespace orthant::model::kernels
