// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/lower.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/pipeline/message.hpp>
#include <orthant/pipeline/timing.hpp>

namespace orthant::pipeline {
namespace {

/// Plays the schedule on a clock of unit costs: an operation enters its rank's list when it begins, its message both
/// lists when it ends.
class Lowering {
 public:
  Lowering(const Schedule& schedule, int slots)
      : source_(schedule), next_(schedule.ranks.size()), running_(schedule.ranks.size()), result_(schedule) {
    result_.slots = slots;
    for (auto& ops : result_.ranks) ops.clear();
  }

  Schedule run() {
    do {
      for (bool progress = true; progress;) {
        progress = false;
        for (std::size_t rank = 0; rank < next_.size(); ++rank) progress |= begin_next(rank);
      }
    } while (end_first());
    require_all_emitted();
    add_tail();
    return std::move(result_);
  }

 private:
  bool begin_next(std::size_t rank) {
    if (running_[rank] || next_[rank] == source_.ranks[rank].size()) return false;
    const Op& op = source_.ranks[rank][next_[rank]];
    const auto receive = receive_before(source_, op);
    if (receive && !received_.contains(*receive)) return false;
    const auto send = send_after(source_, op);
    if (send && taken(matching_receive(*send)) == result_.slots) return false;

    result_.ranks[rank].push_back(op);
    ++next_[rank];
    if (receive) --taken(*receive);
    if (send) ++taken(matching_receive(*send));
    running_[rank] = now_ + cost_of(op.kind, Costs{});
    return true;
  }

  /// Moves the clock to the end of what ends first; false when nothing runs.
  bool end_first() {
    std::optional<double> first;
    for (const auto& end : running_) {
      if (end && (!first || *end < *first)) first = end;
    }
    if (!first) return false;
    now_ = *first;
    for (std::size_t rank = 0; rank < running_.size(); ++rank) {
      if (running_[rank] != first) continue;
      running_[rank].reset();
      if (const auto send = send_after(source_, source_.ranks[rank][next_[rank] - 1])) {
        const Op receive = matching_receive(*send);
        result_.ranks[rank].push_back(*send);
        result_.ranks[source_.rank_of(receive.stage)].push_back(receive);
        received_.insert(receive);
      }
    }
    return true;
  }

  int& taken(const Op& receive) { return taken_[{receive.kind, receive.stage}]; }

  void require_all_emitted() const {
    std::string stuck;
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      if (next_[rank] == source_.ranks[rank].size()) continue;
      stuck += fmt::format("; rank {} at {}", rank, to_text(source_.ranks[rank][next_[rank]]));
    }
    if (stuck.empty()) return;
    throw InternalError(
        fmt::format("schedule {} cannot be lowered with {} slot(s){}", source_.name, result_.slots, stuck));
  }

  void add_tail() {
    const auto trains = [](const auto& ops) {
      return std::ranges::any_of(ops, [](const Op& op) { return op.kind != OpKind::forward; });
    };
    if (!std::ranges::any_of(source_.ranks, trains)) return;
    for (auto& ops : result_.ranks) {
      for (const OpKind kind : {OpKind::norm_units, OpKind::tie, OpKind::norm, OpKind::step})
        ops.push_back({kind, {}, {}});
    }
  }

  const Schedule& source_;
  double now_ = 0;
  std::vector<std::size_t> next_;               ///< per rank
  std::vector<std::optional<double>> running_;  ///< per rank: when the operation that runs ends
  std::set<Op> received_;
  std::map<std::pair<OpKind, StageId>, int>
      taken_;  ///< per channel: slots of messages on their way or not yet consumed
  Schedule result_;
};

}  // namespace

Schedule lower(const Schedule& schedule, int slots) {
  invariant(schedule.slots == 0 && slots >= 1, "lower() takes compute operations only, and at least one slot");
  return Lowering(schedule, slots).run();
}

}  // namespace orthant::pipeline
