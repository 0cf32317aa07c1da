// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/generate/order_clock.hpp>

#include <algorithm>

namespace orthant::pipeline {

OrderClock::OrderClock(const OrderProblem& problem)
    : problem_(problem),
      ends_(3 * static_cast<std::size_t>(problem.pairs())),
      ranks_(static_cast<std::size_t>(problem.ranks)) {}

/// kNever while the operation that gives the input has not run.
double OrderClock::input_at(Step step) const {
  const auto index = static_cast<std::size_t>(step.index);
  const auto next_stage = static_cast<std::size_t>(problem_.microbatches);
  if (step.kind == kF && step.stage > 0) return ends_[index - next_stage] + problem_.hop(step.stage - 1, step.stage);
  if (step.kind == kI && step.stage + 1 < problem_.stages)
    return ends_[index + next_stage] + problem_.hop(step.stage + 1, step.stage);
  return 0;
}

/// before(rank, r, step, input) runs before each step, with when its input is there, and gives up with false;
/// after(rank, r) runs when the rank has done all of its steps.
template <class Before, class After>
Figures OrderClock::play(const Order& order, Before before, After after) {
  std::ranges::fill(ends_, kNever);
  for (Rank& rank : ranks_) {
    rank.next = rank.weights_done = 0;
    rank.now = 0;
    rank.first = -1;
    rank.weights.clear();
  }
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      for (; rank.next < order[r].size(); ++rank.next) {
        const Step step = order[r][rank.next];
        const double input = input_at(step);
        if (input == kNever) break;
        if (!before(rank, r, step, input)) return {};
        const double begin = std::max(rank.now, input);
        if (rank.first < 0) rank.first = begin;
        rank.now = ends_[static_cast<std::size_t>(step.index)] = begin + problem_.cost(step);
        progress = true;
      }
    }
  }
  double first = kNever;
  Figures figures{0, 0, 0};
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    if (rank.next < order[r].size()) return {};
    after(rank, r);
    first = std::min(first, rank.first);
    figures.makespan = std::max(figures.makespan, rank.now);
    figures.span = std::max(figures.span, rank.now - rank.first);
    figures.mean_span += (rank.now - rank.first) / problem_.ranks;
  }
  figures.makespan -= first;
  return figures;
}

Figures OrderClock::run(const Order& order) {
  return play(
      order, [](Rank&, std::size_t, Step, double) { return true; }, [](Rank&, std::size_t) {});
}

Figures OrderClock::run_filled(const Order& order, double share, Order* filled) {
  std::vector<Holding> holdings(ranks_.size(), Holding(problem_));
  if (filled != nullptr) filled->assign(ranks_.size(), {});
  const auto take = [&](std::size_t r, Step step) {
    holdings[r].apply(step.kind);
    if (filled != nullptr) (*filled)[r].push_back(step);
  };
  const auto run_weight = [&](Rank& rank, std::size_t r) {
    const Step weight = rank.weights[rank.weights_done++];
    rank.now += problem_.cost(weight);
    take(r, weight);
  };
  return play(
      order,
      [&](Rank& rank, std::size_t r, Step step, double input) {
        while (rank.weights_done < rank.weights.size()) {
          const double wait = input - rank.now;
          const double least = share * problem_.cost(rank.weights[rank.weights_done]) - problem_.epsilon;
          if (wait < std::max(least, problem_.epsilon) && holdings[r].allows(step.kind)) break;
          run_weight(rank, r);
        }
        if (!holdings[r].allows(step.kind)) return false;
        take(r, step);
        if (step.kind == kI) rank.weights.push_back(problem_.step(kW, step.stage, problem_.microbatch_of(step)));
        return true;
      },
      [&](Rank& rank, std::size_t r) {
        while (rank.weights_done < rank.weights.size()) run_weight(rank, r);
      });
}

}  // namespace orthant::pipeline
