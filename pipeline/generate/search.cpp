// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/generate/search.hpp>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/pipeline/generate/list_schedule.hpp>
#include <orthant/pipeline/generate/refine.hpp>
#include <orthant/pipeline/generate/zero_bubble.hpp>

namespace orthant::pipeline {
namespace {

Score by_span(const Figures& figures) { return {figures.span, figures.makespan + figures.mean_span}; }

/// Forwards of each rank before its first I: as many as fit before the gradient of the first micro-batch arrives would
/// leave no gap; of those that 1F1B does not have, `share`.
std::vector<int> warm_up(const OrderProblem& problem, double share) {
  std::vector<int> forwards(static_cast<std::size_t>(problem.ranks));
  double until_input = 0;  // from the begin of the stage's first F to the arrival of its first gradient
  for (int stage = problem.stages - 1; stage >= 0; --stage) {
    const auto& costs = problem.costs[static_cast<std::size_t>(stage)];
    until_input += costs[kF];
    const int one_f_one_b = problem.ranks - stage;
    const double extra = until_input / std::max(costs[kF], problem.epsilon) - one_f_one_b;
    forwards[static_cast<std::size_t>(stage)] =
        static_cast<int>(std::clamp<double>(one_f_one_b + std::floor(share * extra), 1, problem.microbatches));
    until_input += costs[kI] + 2 * problem.message;
  }
  return forwards;
}

class Search {
 public:
  explicit Search(const ScheduleRequest& request)
      : problem_(order_problem(request, loop_placement(request.ranks, 1))), clock_(problem_) {
    problem_.bounds.push_back({{request.memory.forward, request.memory.input, request.memory.weight}, 0});
    for (const auto generate : {zb_h1, zb_h2}) known_.push_back(to_order(problem_, generate(request)));
    // A long order gets the policies only that are most often the best.
    const bool is_short = problem_.pairs() < 2000;
    std::vector<double> shares{0, 0.5, 0.75, 1, 1.0625, 1.125, 1.25, kNever};
    if (is_short) shares.insert(shares.end(), {0.25, 0.875, 0.9375, 1.5, 2});
    for (const double share : shares) {
      // I before F; as many forwards as fit if there is no end to the share.
      ListPolicy policy{.priority = {1, 1, 0, 0}, .in_flight = {}};
      if (share < kNever) policy.in_flight = warm_up(problem_, share);
      policies_.push_back(policy);
      policy.fill = 0.5;
      if (is_short) policies_.push_back(policy);
    }
  }

  /// Takes the best so far on to a larger limit: so a larger limit is never worse.
  void raise_limit(double limit) {
    problem_.bounds.front().most = limit;
    for (const Order& order : known_) consider(order);
    std::erase_if(policies_, [&](const ListPolicy& policy) {
      const auto made = list_schedule(problem_, policy);
      if (made) consider(made->order);
      return made && !made->was_stopped;
    });
    refine(problem_, by_span, std::min(kMoves, kStepsTimed / (3 * problem_.pairs())), best_);
    score_ = by_span(clock_.run(best_));
  }

  bool is_ideal() const { return score_[0] <= problem_.ideal + problem_.epsilon; }
  Schedule schedule(const std::string& name) const { return to_schedule(problem_, best_, name); }

 private:
  /// Of one refinement; fewer where an order is long.
  static constexpr int kMoves = 400, kStepsTimed = 2'000'000;

  void consider(const Order& order) {
    if (!within_bounds(problem_, order)) return;
    const Score score = by_span(clock_.run(order));
    if (score >= score_) return;
    score_ = score;
    best_ = order;
  }

  OrderProblem problem_;
  OrderClock clock_;
  std::vector<Order> known_;
  std::vector<ListPolicy> policies_;  ///< whose orders larger limits may change
  Order best_;
  Score score_{kNever, kNever};
};

double peak_of_one(const MemoryModel& memory) { return memory.forward + std::max(0.0, memory.input); }

double limit_of(const ScheduleRequest& request) {
  return request.memory_limit > 0 ? request.memory_limit : request.ranks * peak_of_one(request.memory);
}

/// The limits to try, ascending, the least first; p and 2 p micro-batches are among them, and none that is larger than
/// what all micro-batches take or than is of use.
std::vector<double> limits_up_to(const ScheduleRequest& request) {
  constexpr double kUseful = 4;  // micro-batches a rank
  const double one = peak_of_one(request.memory), all_ranks = one * request.ranks;
  const double step = one * std::max(0.5, std::min(request.ranks, request.microbatches) / 16.0);
  const double enough = std::min(one * request.microbatches, kUseful * all_ranks);
  std::vector<double> limits{one};
  for (int i = static_cast<int>(std::floor((one - all_ranks) / step)); limits.back() < enough; ++i) {
    const double limit = all_ranks + i * step;
    if (limit > limit_of(request) * (1 + 1e-9)) break;
    if (limit > one * (1 + 1e-9)) limits.push_back(limit);
  }
  return limits;
}

}  // namespace

std::string zb_search_rule(const ScheduleRequest& request) {
  const double least = peak_of_one(request.memory);
  if (limit_of(request) >= least * (1 - 1e-9)) return memory_model_rule(request);
  return fmt::format("schedule {} with memory_limit = {}, but one micro-batch takes {}; give at least that much",
                     request.name, request.memory_limit, least);
}

Schedule zb_search(const ScheduleRequest& request) {
  const std::string fault = zb_search_rule(request);
  if (!fault.empty()) throw ConfigError(fault);
  Search search(request);
  for (const double limit : limits_up_to(request)) {
    search.raise_limit(limit);
    if (search.is_ideal()) break;
  }
  return search.schedule(request.name);
}

}  // namespace orthant::pipeline
