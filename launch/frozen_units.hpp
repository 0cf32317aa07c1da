// SPDX-License-Identifier: Apache-2.0
// `train.freeze`: which units of the model do not train.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace orthant::launch {

struct FrozenUnits {
  bool embedding = false, head = false, norms = false;
  std::vector<bool> blocks;  ///< each with its two norms

  /// Every unit of the model.
  bool all(bool tied_embeddings) const;
};

/// names   "embedding", "head", "norms", "layers.3", "layers.0-1" (both included)
/// layers  number of blocks
/// Throws  ConfigError naming what is wrong with a name, and what is allowed.
FrozenUnits parse_frozen_units(const std::vector<std::string>& names, std::int64_t layers, bool tied_embeddings);

}  // namespace orthant::launch
