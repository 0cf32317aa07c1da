// SPDX-License-Identifier: Apache-2.0
// Memory that an autograd graph refers to, given up after forward and made again before backward. The graph keeps its
// tensors and never looks at them in between, so that no layer has to know that its input went away. The idea is
// Megatron-LM's CheckpointWithoutOutput.
#pragma once

#include <ATen/core/Tensor.h>

namespace orthant::model {

/// Frees the memory of every tensor that shares storage with `tensor`, which must be whole in it.
void drop_memory(const at::Tensor& tensor);
/// Gives them that of `again` instead, which holds the same values.
void refill_memory(const at::Tensor& dropped, const at::Tensor& again);

}  // namespace orthant::model
