// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/schedule/schedule.hpp>

#include <algorithm>

#include <fmt/format.h>

namespace orthant::pipeline {

Placement loop_placement(int ranks, int chunks) {
  Placement placement;
  for (int stage = 0; stage < ranks * chunks; ++stage) placement.push_back(stage % ranks);
  return placement;
}

Placement v_placement(int ranks) {
  Placement placement;
  for (int stage = 0; stage < 2 * ranks; ++stage) placement.push_back(std::min(stage, 2 * ranks - 1 - stage));
  return placement;
}

Placement mirrored_placement(int ranks) {
  // The second copy's stage s has id ranks + s: the same numbers as down and back again.
  return v_placement(ranks);
}

std::vector<StageId> Schedule::stages_of(int rank) const {
  std::vector<StageId> result;
  for (StageId stage{0}; stage.value < stages; ++stage.value) {
    if (rank_of(stage) == rank) result.push_back(stage);
  }
  return result;
}

Schedule forward_only(const Schedule& training) {
  Schedule result = training;
  result.name = "forward_only";
  result.slots = 0;
  for (auto& ops : result.ranks) {
    std::erase_if(ops, [](const Op& op) { return op.kind != OpKind::forward; });
    for (Op& op : ops) op.joins_next = false;
  }
  return result;
}

Schedule compute_only(const Schedule& schedule) {
  Schedule result = schedule;
  result.slots = 0;
  for (auto& ops : result.ranks) std::erase_if(ops, [](const Op& op) { return !is_compute(op.kind); });
  return result;
}

bool trains(const Schedule& schedule) {
  return std::ranges::any_of(schedule.ranks, [](const auto& ops) {
    return std::ranges::any_of(ops, [](const Op& op) {
      return op.kind != OpKind::forward && op.kind != OpKind::send_activation && op.kind != OpKind::receive_activation;
    });
  });
}

std::string_view letters(OpKind kind) {
  switch (kind) {
    case OpKind::forward:
      return "F";
    case OpKind::backward:
      return "B";
    case OpKind::backward_input:
      return "I";
    case OpKind::backward_weight:
      return "W";
    case OpKind::send_activation:
      return "SEND a";
    case OpKind::receive_activation:
      return "RECV a";
    case OpKind::send_gradient:
      return "SEND g";
    case OpKind::receive_gradient:
      return "RECV g";
    case OpKind::unshard:
      return "UNSHARD";
    case OpKind::reshard:
      return "RESHARD";
    case OpKind::reduce:
      return "REDUCE";
    case OpKind::norm_units:
      return "NORM_UNITS";
    case OpKind::tie:
      return "TIE";
    case OpKind::norm:
      return "NORM";
    case OpKind::step:
      return "STEP";
  }
  return "?";
}

std::string to_text(const Op& op) {
  if (is_tail(op.kind)) return std::string(letters(op.kind));
  return fmt::format("{} s{} m{}", letters(op.kind), op.stage.value, op.microbatch.value);
}

std::string short_text(const Schedule& schedule, const Op& op) {
  if (is_tail(op.kind)) return std::string(letters(op.kind));
  const bool one_stage_each = schedule.stages == static_cast<int>(schedule.ranks.size());
  return one_stage_each ? fmt::format("{}{}", letters(op.kind), op.microbatch.value)
                        : fmt::format("{}{}.{}", letters(op.kind), op.stage.value, op.microbatch.value);
}

std::string to_text(const Schedule& schedule) {
  std::string text;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    text += fmt::format("rank {}:", rank);
    bool joined = false;
    for (const Op& op : schedule.ranks[rank]) {
      text += joined ? " & " : op.joins_next ? " (" : " ";
      text += short_text(schedule, op);
      if (joined) text += ")";
      joined = op.joins_next;
    }
    text += '\n';
  }
  return text;
}

}  // namespace orthant::pipeline
