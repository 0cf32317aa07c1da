// SPDX-License-Identifier: Apache-2.0
// The global gradient norm, piece by piece: each rank sums the squares of the slices it counts, the mesh adds the sums.
#pragma once

#include <ATen/core/Tensor.h>

namespace orthant::optim {

/// Sum of squares of a flat fp32 or fp64 tensor, in fp64, in an order that does not depend on the number of threads.
double sum_of_squares(const at::Tensor& values);

/// min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_; 1 when max_norm is 0 (no clipping). A norm that
/// is not finite is the caller's to find.
double clip_scale(double norm, double max_norm);

}  // namespace orthant::optim
