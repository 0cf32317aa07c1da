// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding in the rotate-half layout (pairs are elements i and i + K/2), as Hugging Face's Llama has
// it.
#pragma once

#include <ATen/core/Tensor.h>

namespace orthant::model::kernels {

// S sequence  K head dim (even)

/// cos and sin of position * theta^(-2 i / K): [S, K/2], fp32 (fp64 for fp64).
struct RotaryTable {
  at::Tensor cos;
  at::Tensor sin;
};

/// Computed in fp64. options  device and type of the activations (bf16 gets fp32 tables).
/// Throws  ShapeError if head_dim is odd.
RotaryTable rotary_table(std::int64_t seq, std::int64_t head_dim, double theta, const at::TensorOptions& options);

}  // namespace orthant::model::kernels
