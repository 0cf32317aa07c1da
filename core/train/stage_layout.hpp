// SPDX-License-Identifier: Apache-2.0
// Which layers a rank holds, and which flat units each layer uses. ATen-free: planner, expand() and executor share it.
#pragma once

#include <cstdint>
#include <vector>

#include <orthant/core/base/id.hpp>

namespace orthant::train {

/// How long a unit's gathered weights and unreduced gradients stay.
enum class Residency : std::uint8_t {
  chunk,  ///< from the step's first use to its last: one gather and one reduction a step
  layer,  ///< block units share two weight and two gradient buffers: gathered before use, reduced after each
          ///< micro-batch
};

struct LayerUnits {
  LayerId layer;
  UnitId main;               ///< gradient written by backward_weight
  UnitId norms{-1};          ///< gradient written by backward_input; -1 when the layer has no norm
  bool alternating = false;  ///< `main` lives in one of two shared buffers under Residency::layer
};

/// The layers of one pipeline stage, in forward order.
struct StageLayout {
  StageId stage;
  std::vector<LayerUnits> layers;
};

}  // namespace orthant::train
