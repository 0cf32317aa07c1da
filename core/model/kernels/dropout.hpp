// SPDX-License-Identifier: Apache-2.0
// Dropout whose mask is a function of where an element is, not of who asks: of the run's seed, the step, the place in
// the model, the sample, the position in it and the column. So it is the same on every mesh, on ranks that hold the
// same rows, and when a forward is made again. Source: Srivastava et al. 2014; the random function is philox.hpp's.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace orthant::model::kernels {

// N rows, sequence-major, on this rank  D columns

/// Which elements of which samples the rows of a tensor are, and which random numbers they get.
struct DropoutRows {
  double rate = 0;                ///< [0, 1): of elements left out
  std::uint64_t key = 0;          ///< of run, step and place in the model
  std::int64_t first_sample = 0;  ///< of the step's samples
  std::int64_t batch = 1;         ///< samples side by side: row s B + b
  std::int64_t first_row = 0;     ///< of the rows of the whole sequence
};

/// residual + update, with elements of the update left out and the others divided by 1 - rate. All [N, D].
at::Tensor add_dropout(const at::Tensor& residual, const at::Tensor& update, const DropoutRows& rows);
/// dout -> d update.
at::Tensor dropout_backward(const at::Tensor& dout, const DropoutRows& rows);

}  // namespace orthant::model::kernels
