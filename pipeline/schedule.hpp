// SPDX-License-Identifier: Apache-2.0
// A pipeline schedule is data: per pipeline rank the list of operations of one step, in order, made by a pure function.
// Generators write compute operations only; lower() adds the messages and the step's tail, validate() proves the
// result, time_schedule() costs it, expand() and the executor run it. Sources: Huang et al. 2019 (GPipe); Narayanan et
// al. 2021 (1F1B); Qi et al. 2024 (ZB-H1).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
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
  tie,         ///< sum tied gradients over their stages,
  norm,        ///< the global gradient norm,
  step,        ///< the optimizer
};

struct Op {
  OpKind kind = OpKind::forward;
  StageId stage{};            ///< -1 in the tail
  MicrobatchId microbatch{};  ///< -1 in the tail
  friend constexpr auto operator<=>(const Op&, const Op&) = default;
};

/// The pipeline rank that holds a stage: a pure function, so that V and loop placements are other functions.
using Placement = std::function<int(StageId)>;
/// Stage s on rank s modulo `ranks`.
Placement loop_placement(int ranks);

struct Schedule {
  std::string name;
  int stages = 0;
  int microbatches = 0;
  int slots =
      0;  ///< messages that a receiver holds before it consumes the first, per channel; 0: compute operations only
  Placement rank_of;
  std::vector<std::vector<Op>> ranks;
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

/// All forwards, then all backwards in micro-batch order (so that sums come in the same order as in the others).
Schedule gpipe(int stages, int microbatches);
/// Stage i warms up with p - 1 - i forwards, then alternates, so that it holds at most p - i activations.
Schedule one_f_one_b(int stages, int microbatches);
/// 1F1B with B split: stage i runs W i micro-batches behind I, where 1F1B would idle in the cool-down. Same peak of
/// activations.
Schedule zb_h1(int stages, int microbatches);
/// Evaluation: forwards only, no tail. Not among the names below, which are what one can train with.
Schedule forward_only(int stages, int microbatches);

/// Names of the training schedules that make_schedule() knows, for messages and help.
std::span<const std::string_view> schedule_names();
/// One stage a rank. stages >= 1, microbatches >= 1.
/// Throws  ConfigError for an unknown name (with the legal ones) or numbers below 1.
Schedule make_schedule(std::string_view name, int stages, int microbatches);

/// The timeline's letters: "F", "B", "I", "W", "SEND a", "RECV g", "UNSHARD", "NORM", …
std::string_view letters(OpKind kind);
/// One operation in words, for messages: "F s1 m3", "NORM".
std::string to_text(const Op& op);
/// One line a rank, operations in order: "rank 1: F0 F1 B0 …".
std::string to_text(const Schedule& schedule);

}  // namespace orthant::pipeline
