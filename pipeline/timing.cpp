// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/timing.hpp>

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/pipeline/message.hpp>

namespace orthant::pipeline {
namespace {

class Clock {
 public:
  Clock(const Schedule& schedule, const Costs& costs)
      : schedule_(schedule), costs_(costs), now_(schedule.ranks.size()), busy_(now_), timing_{} {
    timing_.begins.resize(schedule.ranks.size());
  }

  Timing run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t rank = 0; rank < now_.size(); ++rank) {
        while (advance(rank)) progress = true;
      }
    }
    for (std::size_t rank = 0; rank < now_.size(); ++rank) {
      invariant(next_op(rank) == nullptr, "time_schedule: the ranks wait for each other for ever");
    }
    timing_.makespan = std::ranges::max(now_);
    timing_.bubble = timing_.makespan - std::ranges::max(busy_);
    return std::move(timing_);
  }

 private:
  const Op* next_op(std::size_t rank) const {
    const auto& ops = schedule_.ranks[rank];
    const std::size_t position = timing_.begins[rank].size();
    return position == ops.size() ? nullptr : &ops[position];
  }

  bool advance(std::size_t rank) {
    const Op* op = next_op(rank);
    if (op == nullptr || is_receive(op->kind)) return false;
    return is_send(op->kind) ? hand_over(rank, *op) : compute(rank, *op);
  }

  /// Both ends stand at the message, and leave it together.
  bool hand_over(std::size_t rank, const Op& send) {
    const Op receive = matching_receive(send);
    const std::size_t peer = schedule_.rank_of(receive.stage);
    const Op* other = next_op(peer);
    if (other == nullptr || *other != receive) return false;
    const double begin = std::max(now_[rank], now_[peer]);
    for (const std::size_t end : {rank, peer}) {
      timing_.begins[end].push_back(begin);
      now_[end] = begin + costs_.message;
    }
    return true;
  }

  bool compute(std::size_t rank, const Op& op) {
    double begin = now_[rank];
    if (schedule_.slots == 0) {
      if (const auto receive = receive_before(schedule_, op)) {
        const auto arrival = arrivals_.find(*receive);
        if (arrival == arrivals_.end()) return false;
        begin = std::max(begin, arrival->second);
      }
    }
    const double cost = cost_of(op.kind, costs_);
    timing_.begins[rank].push_back(begin);
    now_[rank] = begin + cost;
    busy_[rank] += cost;
    if (const auto send = send_after(schedule_, op)) arrivals_[matching_receive(*send)] = now_[rank] + costs_.message;
    return true;
  }

  const Schedule& schedule_;
  const Costs& costs_;
  std::vector<double> now_;   ///< per rank
  std::vector<double> busy_;  ///< per rank
  std::map<Op, double> arrivals_;
  Timing timing_;
};

}  // namespace

Timing time_schedule(const Schedule& schedule, const Costs& costs) { return Clock(schedule, costs).run(); }

std::string draw(const Schedule& schedule, const Costs& costs) {
  const Timing timing = time_schedule(schedule, costs);
  constexpr std::size_t kCell = 4;
  std::string picture;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::vector<std::string> cells(static_cast<std::size_t>(timing.makespan), ".");
    for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Op& op = schedule.ranks[rank][i];
      const auto begin = static_cast<std::size_t>(timing.begins[rank][i]);
      const auto cost = static_cast<std::size_t>(cost_of(op.kind, costs));
      for (std::size_t t = begin; t < begin + cost; ++t)
        cells[t] = fmt::format("{}{}", letters(op.kind), op.microbatch.value);
    }
    picture += fmt::format("rank {}  ", rank);
    for (const std::string& cell : cells) picture += fmt::format("{:<{}}", cell, kCell);
    picture.erase(picture.find_last_not_of(' ') + 1);
    picture += '\n';
  }
  return picture;
}

}  // namespace orthant::pipeline
