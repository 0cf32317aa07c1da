// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing: which parts of a block are not kept for backward but made again. ATen-free.
#pragma once

namespace orthant::model {

struct Recompute {
  bool block = false;      ///< everything but the block's input
  bool attention = false;  ///< heads, probabilities and context, from the fused projection, which is kept
  bool mlp = false;        ///< norm, gate and up, and their product, from the residual before them
  friend bool operator==(const Recompute&, const Recompute&) = default;
};

}  // namespace orthant::model
