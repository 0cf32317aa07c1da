// SPDX-License-Identifier: Apache-2.0
// What the operations of a schedule take, in time and in memory. Any one unit of time.
#pragma once

#include <vector>

#include <orthant/pipeline/schedule/schedule.hpp>

namespace orthant::pipeline {

/// Of one stage (chunk) and micro-batch.
struct StageCosts {
  double forward = 1;
  double input = 1;
  double weight = 1;
  friend constexpr bool operator==(const StageCosts&, const StageCosts&) = default;
};

struct Costs {
  std::vector<StageCosts> stages = {{}};  ///< one for all stages, or one for each stage of a copy
  double message = 0;                     ///< from the end of the sender's operation to the receiver, between ranks
  double overlapped = 0;                  ///< an overlapped F and B as one; 0: the sum of both

  const StageCosts& of(const Schedule& schedule, StageId stage) const {
    return stages.size() == 1 ? stages.front() : stages[static_cast<std::size_t>(stage.value % schedule.depth())];
  }
};

/// The same costs for every stage.
inline Costs uniform_costs(StageCosts stage, double message = 0) {
  return {.stages = {stage}, .message = message, .overlapped = 0};
}

/// Of one computation on its own; B costs input + weight. All else costs nothing.
constexpr double cost_of(OpKind kind, const StageCosts& costs) {
  switch (kind) {
    case OpKind::forward:
      return costs.forward;
    case OpKind::backward:
      return costs.input + costs.weight;
    case OpKind::backward_input:
      return costs.input;
    case OpKind::backward_weight:
      return costs.weight;
    default:
      return 0;
  }
}

/// How the memory of activations changes, in any one unit; the three sum to 0. What an operation adds is there from its
/// begin, what it frees is gone at its end. With activation checkpointing `input` is positive.
struct MemoryModel {
  double forward = 1;
  double input = -1;
  double weight = 0;
};

constexpr double memory_delta(OpKind kind, const MemoryModel& memory) {
  switch (kind) {
    case OpKind::forward:
      return memory.forward;
    case OpKind::backward:
      return memory.input + memory.weight;
    case OpKind::backward_input:
      return memory.input;
    case OpKind::backward_weight:
      return memory.weight;
    default:
      return 0;
  }
}

}  // namespace orthant::pipeline
