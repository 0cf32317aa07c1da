// SPDX-License-Identifier: Apache-2.0
// Between the fused projection's columns and the batched layout of attention's products, rotating on the way.
#pragma once

#include <ATen/core/Tensor.h>
#include <orthant/core/model/kernels/attention.hpp>

namespace orthant::model::kernels {

// S sequence  B batch  G key/value heads  K head dim  N = S B rows, sequence-major

/// A run of heads in a fused row: `heads` of them (divisible by G), K columns each, from column `first`.
struct HeadColumns {
  std::int64_t first = 0;
  std::int64_t heads = 0;
};

/// fused [N, any]. rotary: nullptr copies, else rotates by the row's position.
/// returns [B G, (heads/G) S, K]: the heads of a group one under the other.
at::Tensor split_heads(const at::Tensor& fused, const HeadColumns& columns, const AttentionShape& shape,
                       const RotaryTable* rotary);

/// The transpose of split_heads: split [B G, (heads/G) S, K] into the columns of fused [N, any], rotated back.
void merge_heads(const at::Tensor& split, const HeadColumns& columns, const AttentionShape& shape,
                 const RotaryTable* rotary, const at::Tensor& fused);

}  // namespace orthant::model::kernels
