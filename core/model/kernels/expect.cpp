// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/expect.hpp>

#include <algorithm>

#include <c10/util/StringUtil.h>

namespace orthant::model::kernels {

void expect(const at::Tensor& t, const char* name, at::ScalarType type, std::initializer_list<std::int64_t> sizes) {
  const auto fits = [](std::int64_t found, std::int64_t wanted) { return wanted < 0 || found == wanted; };
  if (!t.defined()) throw ShapeError(c10::str(name, " is not a tensor"));
  const auto found = t.sizes();
  if (t.scalar_type() != type || !std::equal(found.begin(), found.end(), sizes.begin(), sizes.end(), fits)) {
    throw ShapeError(c10::str(name, " is ", found, " ", t.scalar_type(), ", wanted ", at::IntArrayRef(sizes), " ", type,
                              " (-1: any)"));
  }
  if (!t.is_contiguous()) throw ShapeError(c10::str(name, " is not contiguous; call contiguous() first"));
}

}  // namespace orthant::model::kernels
