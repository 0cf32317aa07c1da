// SPDX-License-Identifier: Apache-2.0
// Random plans that may hang: lowered schedules whose operations are swapped so that all data still stand before their
// readers and every channel keeps its order, and which may be given fewer slots than they were lowered for.
#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include <orthant/pipeline/generate/catalog.hpp>
#include <orthant/pipeline/plan/lower.hpp>
#include <orthant/pipeline/schedule/message.hpp>

namespace orthant::pipeline::tests {

class RandomSwaps {
 public:
  explicit RandomSwaps(unsigned seed) : random_(seed) {}

  /// Any schedule of the catalog of at most `ranks` ranks and `microbatches` micro-batches.
  Schedule next(int ranks, int microbatches) {
    Schedule schedule = lowered(ranks, microbatches);
    for (int swaps = between(0, 8); swaps > 0; --swaps) swap(schedule);
    if (between(0, 3) == 0) schedule.slots = between(1, schedule.slots);
    return schedule;
  }

  int between(int low, int high) { return std::uniform_int_distribution(low, high)(random_); }
  std::mt19937& random() { return random_; }

 private:
  Schedule lowered(int ranks, int microbatches) {
    for (;;) {
      const auto name =
          schedule_names()[static_cast<std::size_t>(between(0, static_cast<int>(schedule_names().size()) - 1))];
      const ScheduleRequest request{
          .name = std::string(name), .ranks = between(2, ranks), .microbatches = between(1, microbatches)};
      if (!broken_rule(request).empty()) continue;
      const Schedule schedule = make_schedule(request);
      return lower(schedule, slots_for(schedule) + between(0, 2));
    }
  }

  /// Two operations of one rank before its tail, mostly near each other; undone if it breaks data or a channel's order.
  void swap(Schedule& schedule) {
    auto& ops = schedule.ranks[static_cast<std::size_t>(between(0, static_cast<int>(schedule.ranks.size()) - 1))];
    const std::vector<Op> before = ops;
    constexpr int kTail = 4;
    const int last = static_cast<int>(ops.size()) - 1 - kTail;
    const int a = between(0, last), b = between(0, 2) == 0 ? between(0, last) : std::min(last, a + between(1, 4));
    if (between(0, 1) == 0) {
      std::swap(ops[a], ops[b]);
    } else {
      bring_forward(schedule, ops, std::min(a, b), std::max(a, b));
    }
    if (!keeps_data(schedule, ops) || messages(schedule, ops) != messages(schedule, before)) ops = before;
  }

  /// Puts the operation at `from`, with its RECV before it, to an earlier place: that is what makes streams hang.
  static void bring_forward(const Schedule& schedule, std::vector<Op>& ops, int to, int from) {
    const Op op = ops[from];
    const auto move = [&](int position) {
      std::rotate(ops.begin() + to, ops.begin() + position, ops.begin() + position + 1);
    };
    move(from);
    const auto receive = receive_before(schedule, op);
    const auto found = receive ? std::ranges::find(ops, *receive) : ops.end();
    if (found != ops.end() && found - ops.begin() > to) move(static_cast<int>(found - ops.begin()));
  }

  static std::map<std::pair<ChannelKey, bool>, std::vector<Op>> messages(const Schedule& schedule,
                                                                         const std::vector<Op>& ops) {
    std::map<std::pair<ChannelKey, bool>, std::vector<Op>> result;
    for (const Op& op : ops) {
      if (is_send(op.kind) || is_receive(op.kind)) result[{channel_of(schedule, op), is_send(op.kind)}].push_back(op);
    }
    return result;
  }

  static bool keeps_data(const Schedule& schedule, const std::vector<Op>& ops) {
    std::map<Op, int> at;
    for (std::size_t i = 0; i < ops.size(); ++i) at[ops[i]] = static_cast<int>(i);
    const auto before = [&](const Op& first, const Op& second) {
      return !at.contains(first) || !at.contains(second) || at[first] < at[second];
    };
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const Op& op = ops[i];
      const auto like = [&](OpKind kind) { return Op{kind, op.stage, op.microbatch}; };
      if (op.joins_next && (ops[i + 1].kind != OpKind::backward || ops[i + 1] == like(OpKind::backward))) return false;
      if (!is_compute(op.kind)) continue;
      if (!before(like(OpKind::forward), op) && op.kind != OpKind::forward) return false;
      if (op.kind == OpKind::backward_weight && !before(like(OpKind::backward_input), op)) return false;
      if (const auto receive = receive_before(schedule, op); receive && !before(*receive, op)) return false;
      if (const auto send = send_after(schedule, op); send && !before(op, *send)) return false;
      if (const auto target = target_stage(schedule, op); target && op.kind != OpKind::backward_weight) {
        for (const OpKind kind : {OpKind::forward, OpKind::backward, OpKind::backward_input}) {
          const bool same_flow = (kind == OpKind::forward) == (op.kind == OpKind::forward);
          if (same_flow && !before(op, {kind, *target, op.microbatch})) return false;
        }
      }
    }
    return true;
  }

  std::mt19937 random_;
};

}  // namespace orthant::pipeline::tests
