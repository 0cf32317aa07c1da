// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/cost/timing.hpp>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/pipeline/schedule/message.hpp>

namespace orthant::pipeline {
namespace {

constexpr double kNotYet = std::numeric_limits<double>::infinity();

class Clock {
 public:
  Clock(const Schedule& schedule, const Costs& costs)
      : schedule_(schedule),
        costs_(costs),
        next_(schedule.ranks.size()),
        now_(schedule.ranks.size()),
        arrivals_(2 * static_cast<std::size_t>(schedule.stages * schedule.microbatches), kNotYet) {
    for (const auto& ops : schedule.ranks) intervals_.emplace_back(ops.size());
  }

  std::vector<std::vector<Interval>> run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t rank = 0; rank < now_.size(); ++rank) {
        while (advance(rank)) progress = true;
      }
    }
    require_all_done();
    return std::move(intervals_);
  }

 private:
  /// Runs the next operation of the rank, or pair, if its inputs are known.
  bool advance(std::size_t rank) {
    const auto& ops = schedule_.ranks[rank];
    const std::size_t first = next_[rank];
    if (first == ops.size()) return false;
    const std::size_t last = first + (ops[first].joins_next ? 1 : 0);
    double begin = now_[rank];
    for (std::size_t i = first; i <= last; ++i) begin = std::max(begin, input_at(ops[i]));
    if (begin == kNotYet) return false;
    const double end = begin + duration(ops, first);
    for (std::size_t i = first; i <= last; ++i) {
      intervals_[rank][i] = {begin, end};
      give(ops[i], end);
    }
    next_[rank] = last + 1;
    now_[rank] = end;
    return true;
  }

  double duration(const std::vector<Op>& ops, std::size_t first) const {
    const auto alone = [&](const Op& op) { return cost_of(op.kind, costs_.of(schedule_, op.stage)); };
    if (!ops[first].joins_next) return alone(ops[first]);
    return costs_.overlapped > 0 ? costs_.overlapped : alone(ops[first]) + alone(ops[first + 1]);
  }

  double& arrival(bool gradient, StageId stage, MicrobatchId m) {
    return arrivals_[static_cast<std::size_t>(
        ((gradient ? schedule_.stages : 0) + stage.value) * schedule_.microbatches + m.value)];
  }

  double input_at(const Op& op) {
    return source_stage(schedule_, op) ? arrival(op.kind != OpKind::forward, op.stage, op.microbatch) : 0;
  }

  void give(const Op& op, double end) {
    const auto target = target_stage(schedule_, op);
    if (!target) return;
    const bool crosses = schedule_.rank_of(*target) != schedule_.rank_of(op.stage);
    arrival(op.kind != OpKind::forward, *target, op.microbatch) = end + (crosses ? costs_.message : 0);
  }

  void require_all_done() const {
    std::string stuck;
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      if (next_[rank] < schedule_.ranks[rank].size())
        stuck += fmt::format("; rank {} at {}", rank, to_text(schedule_.ranks[rank][next_[rank]]));
    }
    if (!stuck.empty())
      throw InternalError(fmt::format("schedule {}: the ranks wait for each other for ever{}", schedule_.name, stuck));
  }

  const Schedule& schedule_;
  const Costs& costs_;
  std::vector<std::size_t> next_;  ///< per rank
  std::vector<double> now_;        ///< per rank
  std::vector<double> arrivals_;   ///< of activations, then of gradients: per stage and micro-batch
  std::vector<std::vector<Interval>> intervals_;
};

double peak_of(const std::vector<Op>& ops, const MemoryModel& memory) {
  double held = 0, peak = 0;
  for (const Op& op : ops) peak = std::max(peak, held += memory_delta(op.kind, memory));
  return peak;
}

}  // namespace

Timing timing_of(const Schedule& compute, std::vector<std::vector<Interval>> ops, const MemoryModel& memory) {
  Timing timing;
  std::vector<double> work;
  std::optional<double> first;
  double last = 0;
  for (std::size_t rank = 0; rank < compute.ranks.size(); ++rank) {
    const auto& list = compute.ranks[rank];
    const auto& at = ops[rank];
    invariant(at.size() == list.size(), "timing_of: a timeline of another schedule");
    work.push_back(0);
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i == 0 || !list[i - 1].joins_next) work.back() += at[i].end - at[i].begin;
    }
    timing.peak.push_back(peak_of(list, memory));
    if (list.empty()) continue;
    first = std::min(first.value_or(at.front().begin), at.front().begin);
    last = std::max(last, at.back().end);
    timing.span = std::max(timing.span, at.back().end - at.front().begin);
  }
  timing.makespan = last - first.value_or(last);
  timing.ideal = work.empty() ? 0 : std::ranges::max(work);
  for (const double busy : work) timing.idle.push_back(timing.makespan - busy);
  timing.ops = std::move(ops);
  return timing;
}

Timing time_schedule(const Schedule& schedule, const Costs& costs, const MemoryModel& memory) {
  return timing_of(schedule, Clock(schedule, costs).run(), memory);
}

}  // namespace orthant::pipeline
