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
  layer,  ///< blocks take turns in two buffers: gathered before each use, or reduced after each micro-batch
};

/// Of gathered weights and of unreduced gradients.
struct Residencies {
  Residency weights = Residency::chunk;
  Residency gradients = Residency::chunk;
};

struct LayerUnits {
  LayerId layer;
  UnitId main;               ///< gradient written by backward_weight
  UnitId norms{-1};          ///< gradient written by backward_input; -1 when the layer has no norm
  bool alternating = false;  ///< `main` takes turns with other blocks under Residency::layer
};

/// The layers of one pipeline stage, in forward order.
struct StageLayout {
  StageId stage;
  std::vector<LayerUnits> layers;
};

}  // namespace orthant::train
