// SPDX-License-Identifier: Apache-2.0
// A pipeline schedule is data: per pipeline rank the list of operations of one step, in order. Generators (folder
// generate) make compute operations only, and so do files (csv.hpp) without messages; folder plan adds messages and the
// step's tail and proves the result; folder cost times it; folder execute runs it.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <orthant/core/base/id.hpp>

namespace orthant::pipeline {

enum class OpKind : std::uint8_t {
  forward,             ///< F
  backward,            ///< B = I and W at once
  backward_input,      ///< I
  backward_weight,     ///< W
  send_activation,     ///< of the stage that owns it, to the stage after
  receive_activation,  ///< by the stage that consumes it, from the stage before
  send_gradient,
  receive_gradient,
  unshard,  ///< this one and the next two are written by expand(), for units
  reshard,
  reduce,
  norm_units,  ///< the tail, once a step: reduce the norm units,
  tie,         ///< sum gradients over the ranks that hold the same weight,
  norm,        ///< the global gradient norm,
  step,        ///< the optimizer
};

struct Op {
  OpKind kind = OpKind::forward;
  StageId stage{};            ///< -1 in the tail
  MicrobatchId microbatch{};  ///< -1 in the tail
  /// F of an overlapped pair (DualPipe's F&B): it and the B that stands right after it are one operation, which begins
  /// when both inputs are there and gives both outputs at its end. No part of the identity below.
  bool joins_next = false;

  friend constexpr std::strong_ordering operator<=>(const Op& a, const Op& b) {
    return std::tie(a.kind, a.stage, a.microbatch) <=> std::tie(b.kind, b.stage, b.microbatch);
  }
  friend constexpr bool operator==(const Op& a, const Op& b) { return (a <=> b) == 0; }
};

/// The pipeline rank of each stage.
using Placement = std::vector<int>;
/// Stage s on rank s modulo `ranks`, `chunks` stages on each.
Placement loop_placement(int ranks, int chunks);
/// Two stages a rank: down and back again, stage s and 2 ranks - 1 - s together.
Placement v_placement(int ranks);
/// Two copies of the pipeline, one in each direction: stage s of the second (id ranks + s) on rank ranks - 1 - s.
Placement mirrored_placement(int ranks);

struct Schedule {
  std::string name;
  int stages = 0;  ///< of all copies of the pipeline
  int copies = 1;  ///< 2: DualPipe, whose two directions have a copy of the parameters each
  int microbatches = 0;
  int slots =
      0;  ///< messages that a receiver holds before it consumes the first, per channel; 0: compute operations only
  Placement placement;                 ///< rank of each stage
  std::vector<std::vector<Op>> ranks;  ///< operations of each rank

  int rank_of(StageId stage) const { return placement[static_cast<std::size_t>(stage.value)]; }
  int depth() const { return stages / copies; }  ///< stages that a micro-batch goes through
  bool is_first(StageId stage) const { return stage.value % depth() == 0; }
  bool is_last(StageId stage) const { return stage.value % depth() == depth() - 1; }
  /// Which micro-batches go through the stage: first, and one past the last. With two copies half of them each.
  std::pair<int, int> microbatches_of(StageId stage) const {
    const int copy = stage.value / depth();
    return {copy * microbatches / copies, (copy + 1) * microbatches / copies};
  }
  /// Stages of a rank, ascending.
  std::vector<StageId> stages_of(int rank) const;
};

constexpr bool is_compute(OpKind kind) { return kind <= OpKind::backward_weight; }
/// B or I: consumes the gradient of the stage's output and makes that of its input.
constexpr bool makes_input_gradient(OpKind kind) { return kind == OpKind::backward || kind == OpKind::backward_input; }
/// B or W: adds to the weight gradients.
constexpr bool makes_weight_gradient(OpKind kind) {
  return kind == OpKind::backward || kind == OpKind::backward_weight;
}
constexpr bool is_send(OpKind kind) { return kind == OpKind::send_activation || kind == OpKind::send_gradient; }
constexpr bool is_receive(OpKind kind) {
  return kind == OpKind::receive_activation || kind == OpKind::receive_gradient;
}
constexpr bool is_tail(OpKind kind) { return kind >= OpKind::norm_units; }

/// Evaluation: the forwards of a training schedule, in its order; no tail.
Schedule forward_only(const Schedule& training);
/// The computations of a lowered schedule, without messages and tail; of a compute-only one a copy.
Schedule compute_only(const Schedule& schedule);
/// Whether the step has a backward.
bool trains(const Schedule& schedule);

/// The timeline's letters: "F", "B", "I", "W", "SEND a", "RECV g", "UNSHARD", "NORM", …
std::string_view letters(OpKind kind);
/// One operation in words, for messages: "F s1 m3", "NORM".
std::string to_text(const Op& op);
/// One operation as briefly as its schedule allows: "F0" of micro-batch 0; "F2.0" of stage 2 where ranks have several.
std::string short_text(const Schedule& schedule, const Op& op);
/// One line a rank, operations in order and brief: "rank 1: F0 F1 B0 …"; those of a pair stand in parentheses.
std::string to_text(const Schedule& schedule);

}  // namespace orthant::pipeline
