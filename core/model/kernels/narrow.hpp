// SPDX-License-Identifier: Apache-2.0
// fp32 to bf16 in the same memory, for what travels narrow.
#pragma once

#include <ATen/core/Tensor.h>

namespace orthant::model::kernels {

/// values [n] fp32, contiguous: afterwards the first half of its memory holds them as n bf16, rounded to nearest even.
void narrow_in_place(const at::Tensor& values);

}  // namespace orthant::model::kernels
