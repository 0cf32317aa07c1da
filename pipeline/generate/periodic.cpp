// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/generate/periodic.hpp>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

namespace orthant::pipeline {
namespace {

/// One F or I of one of the repeated micro-batches.
struct Slot {
  StepKind kind;
  int stage;
  int microbatch;  ///< of the repeated ones
  int period;      ///< in which it runs, if its micro-batch is of period 0
};

/// The slots of a rank in the order in which they run in one period.
using Cycle = std::vector<Slot>;

Cycle cycle_of(const OrderProblem& problem, const Pattern& pattern, int rank) {
  const int up = 2 * problem.ranks - 1 - rank;
  const std::array<std::pair<StepKind, int>, 4> places{{{kF, rank}, {kF, up}, {kI, up}, {kI, rank}}};
  std::vector<std::pair<double, Slot>> slots;
  for (std::size_t place = 0; place < places.size(); ++place) {
    for (int m = 0; m < pattern.repeated(); ++m) {
      const double begin = pattern.begins[static_cast<std::size_t>(rank)][place][static_cast<std::size_t>(m)];
      const double period = std::floor(begin / pattern.period);
      slots.push_back(
          {begin - period * pattern.period, {places[place].first, places[place].second, m, static_cast<int>(period)}});
    }
  }
  std::ranges::stable_sort(slots, {}, &std::pair<double, Slot>::first);
  Cycle cycle;
  for (const auto& [begin, slot] : slots) cycle.push_back(slot);
  return cycle;
}

/// All micro-batches of the problem, the last period perhaps not whole.
void unroll(const OrderProblem& problem, int repeated, const Cycle& cycle, std::vector<Step>& steps) {
  const auto [first, last] = std::ranges::minmax(cycle, {}, &Slot::period);
  const int periods = (problem.microbatches + repeated - 1) / repeated;
  steps.clear();
  for (int now = first.period; now < last.period + periods; ++now) {
    for (const Slot& slot : cycle) {
      const int period = now - slot.period, microbatch = period * repeated + slot.microbatch;
      if (period >= 0 && microbatch < problem.microbatches)
        steps.push_back(problem.step(slot.kind, slot.stage, microbatch));
    }
  }
}

/// Exchanges a slot with the one behind it, in the next period if it is the last of this one. Micro-batches stay in
/// order in each stage and F, I of one of them on the whole rank.
bool exchange_with_next(Cycle& cycle, std::size_t at) {
  const bool wraps = at + 1 == cycle.size();
  Slot& slot = cycle[at];
  Slot& next = cycle[wraps ? 0 : at + 1];
  const bool same_stage_and_kind = slot.stage == next.stage && slot.kind == next.kind;
  const bool same_microbatch = slot.microbatch == next.microbatch && slot.period == next.period - (wraps ? 1 : 0);
  if (same_stage_and_kind || same_microbatch) return false;
  std::swap(slot, next);
  if (wraps) {
    --slot.period;
    ++next.period;
  }
  return true;
}

class Annealing {
 public:
  Annealing(const OrderProblem& problem, Objective objective, const Pattern& start, const PeriodicSearch& search)
      : problem_(problem), objective_(objective), repeated_(start.repeated()), search_(search), clock_(problem_) {
    for (int rank = 0; rank < problem_.ranks; ++rank) {
      cycles_.push_back(cycle_of(problem_, start, rank));
      unroll(problem_, repeated_, cycles_.back(), order_.emplace_back());
    }
    best_ = cycles_;
    score_ = best_score_ = objective_(clock_.run_filled(order_, search.fill));
  }

  std::vector<Cycle> run() {
    // Accepts what is worse by less than a threshold, which falls from a tenth of a micro-batch's work to nothing.
    const double threshold = problem_.ideal / problem_.microbatches / 10;
    for (int i = 0; i < search_.tries; ++i) try_move(threshold * (search_.tries - i) / search_.tries);
    return best_;
  }

 private:
  void try_move(double threshold) {
    const std::size_t rank = random_() % cycles_.size();
    Cycle& cycle = cycles_[rank];
    const Cycle before = cycle;
    std::size_t at = random_() % cycle.size();
    const bool later = random_() % 2 == 0;
    bool moved = false;
    for (std::size_t left = 1 + random_() % kReach; left > 0; --left) {
      const std::size_t previous = (at + cycle.size() - 1) % cycle.size();
      if (!exchange_with_next(cycle, later ? at : previous)) break;
      at = later ? (at + 1) % cycle.size() : previous;
      moved = true;
    }
    if (!moved) return;
    std::swap(kept_, order_[rank]);
    unroll(problem_, repeated_, cycle, order_[rank]);
    const Score score = objective_(clock_.run_filled(order_, search_.fill));
    if (score[0] < kNever && score[0] <= score_[0] + threshold) {
      score_ = score;
      if (score >= best_score_) return;
      best_score_ = score;
      best_ = cycles_;
    } else {
      cycle = before;
      std::swap(kept_, order_[rank]);
    }
  }

  static constexpr unsigned kReach = 4;

  const OrderProblem& problem_;
  Objective objective_;
  int repeated_;
  PeriodicSearch search_;
  OrderClock clock_;
  std::vector<Cycle> cycles_, best_;
  Order order_;  ///< of F and I
  std::vector<Step> kept_;
  Score score_{}, best_score_{};
  std::mt19937 random_{1};  ///< its raw numbers are the same everywhere
};

}  // namespace

Pattern block_pattern(VShape shape, int ranks, int repeated) {
  Pattern pattern{.begins = {}, .period = static_cast<double>(kBlockCells * repeated)};
  for (int rank = 0; rank < ranks; ++rank) {
    auto& places = pattern.begins.emplace_back();
    const auto offsets = block_offsets(shape, ranks, rank);
    for (std::size_t place = 0; place < places.size(); ++place)
      for (int m = 0; m < repeated; ++m) places[place].push_back(offsets[place] + kBlockCells * m);
  }
  return pattern;
}

Pattern middle_pattern(const OrderProblem& problem, const Order& order, int repeated) {
  OrderClock clock(problem);
  clock.run(order);
  const auto begin = [&](StepKind kind, int stage, int microbatch) {
    const Step step = problem.step(kind, stage, microbatch);
    return clock.ends()[static_cast<std::size_t>(step.index)] - problem.cost(step);
  };
  const int first = (problem.microbatches - repeated) / 2;
  const double least = problem.ideal / problem.microbatches / 10;  // F's in a row, or ones that take no time
  Pattern pattern{.begins = {}, .period = std::max(least, begin(kF, 0, first + repeated) - begin(kF, 0, first))};
  for (int rank = 0; rank < problem.ranks; ++rank) {
    auto& places = pattern.begins.emplace_back();
    const int up = 2 * problem.ranks - 1 - rank;
    for (int m = first; m < first + repeated; ++m) {
      places[0].push_back(begin(kF, rank, m));
      places[1].push_back(begin(kF, up, m));
      places[2].push_back(begin(kI, up, m));
      places[3].push_back(begin(kI, rank, m));
    }
  }
  return pattern;
}

Order search_periodic(const OrderProblem& problem, Objective objective, const Pattern& start,
                      const PeriodicSearch& search) {
  OrderProblem shorter = problem;
  constexpr int kPerRank = 4;  // micro-batches a rank: what more of them do is repeat
  shorter.microbatches = std::min(problem.microbatches, kPerRank * problem.ranks + start.repeated());
  shorter.ideal *= static_cast<double>(shorter.microbatches) / problem.microbatches;
  Order order;
  for (const Cycle& cycle : Annealing(shorter, objective, start, search).run())
    unroll(problem, start.repeated(), cycle, order.emplace_back());
  Order filled;
  const Figures figures = OrderClock(problem).run_filled(order, search.fill, &filled);
  return figures.makespan < kNever ? filled : Order{};
}

}  // namespace orthant::pipeline
