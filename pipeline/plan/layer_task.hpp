// SPDX-License-Identifier: Apache-2.0
// A layer task: one layer's part of a compute operation, or what a schedule does besides (gather and reduce a unit,
// messages, tail). What the executor submits, and what simulator and memory plan count.
#pragma once

#include <orthant/core/base/id.hpp>
#include <orthant/pipeline/schedule/schedule.hpp>

namespace orthant::pipeline {

struct LayerTask {
  OpKind kind = OpKind::forward;
  StageId stage{};
  MicrobatchId microbatch{};  ///< computations and messages
  LayerId layer{};            ///< computations
  UnitId unit{};              ///< computations: the layer's main unit; unshard, reshard, reduce: theirs
  UnitId norms{};             ///< computations: the layer's norm unit, -1 without
  bool opens = false;         ///< first layer of its operation: takes what the stage received
  bool closes = false;        ///< last layer of its operation: makes what the stage sends; reduce: the unit's last
  bool joins_next = false;    ///< of an F that is one operation with the B that stands right after it
  friend constexpr bool operator==(const LayerTask&, const LayerTask&) = default;
};

/// F, I and B compute with weights; W needs none.
constexpr bool reads_weights(OpKind kind) { return is_compute(kind) && kind != OpKind::backward_weight; }

}  // namespace orthant::pipeline
