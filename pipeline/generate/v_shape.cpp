// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/generate/v_shape.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/pipeline/cost/timing.hpp>
#include <orthant/pipeline/generate/list_schedule.hpp>
#include <orthant/pipeline/generate/looped.hpp>
#include <orthant/pipeline/generate/periodic.hpp>
#include <orthant/pipeline/generate/refine.hpp>
#include <orthant/pipeline/generate/v_pattern.hpp>

namespace orthant::pipeline {
namespace {

Score by_makespan(const Figures& figures) { return {figures.makespan, figures.span + figures.mean_span}; }

/// 1F1B over as many ranks, with both stages of a rank in one.
double one_f_one_b_makespan(const ScheduleRequest& request, const OrderProblem& problem) {
  ScheduleRequest whole{.name = {}, .ranks = request.ranks, .microbatches = request.microbatches, .chunks = 1};
  whole.costs.message = problem.message;
  whole.costs.stages.clear();
  for (const auto& stages : problem.stages_of) {
    std::array<double, 3> sum{};
    for (const int stage : stages)
      for (std::size_t kind = 0; kind < sum.size(); ++kind)
        sum[kind] += problem.costs[static_cast<std::size_t>(stage)][kind];
    whole.costs.stages.push_back({sum[kF], sum[kI], sum[kW]});
  }
  return time_schedule(one_f_one_b(whole), whole.costs).makespan;
}

class VSearch {
 public:
  VSearch(const OrderProblem& problem, VShape shape, double goal)
      : problem_(problem), shape_(shape), goal_(goal), clock_(problem_) {}

  Order run() {
    consider(published_order(problem_, shape_));
    if (makespan_ <= problem_.ideal + problem_.epsilon) return best_;
    const VShape block = shape_ == VShape::third ? VShape::third : VShape::half;
    search_patterns([&](int repeated) { return block_pattern(block, problem_.ranks, repeated); });
    std::size_t tried = 0;
    for (const auto& [score, order] : list_schedules()) {
      if (tried++ >= (makespan_ > goal_ ? kMostLists : kLists)) break;
      consider(order);
      search_patterns([&](int repeated) { return middle_pattern(problem_, order, repeated); });
    }
    invariant(!best_.empty(), "no order of a V within the bounds");
    refine(problem_, by_makespan, as_many_as(kMoves, 15'000'000), best_);
    return best_;
  }

 private:
  static constexpr int kPolicies = 432, kPatternMoves = 1500, kMoves = 15'000;
  /// Greedy orders that patterns are taken from; more while the result is longer than the goal.
  static constexpr std::size_t kLists = 4, kMostLists = 16;

  /// `most`, or as many as go through that many steps together: so that a search takes seconds at most.
  int as_many_as(int most, int steps) const { return std::clamp(steps / (3 * problem_.pairs()), 24, most); }

  template <class MakePattern>
  void search_patterns(MakePattern make_pattern) {
    constexpr int kMostRepeated = 4;
    for (int repeated = 1; repeated <= std::min(kMostRepeated, problem_.microbatches - 1); ++repeated)
      consider(search_periodic(problem_, by_makespan, make_pattern(repeated),
                               {.tries = as_many_as(kPatternMoves, 4'000'000)}));
  }

  /// What greedy schedulers make, without repetitions, the best first.
  std::vector<std::pair<Score, Order>> list_schedules() {
    std::vector<std::pair<Score, Order>> orders;
    int left = as_many_as(kPolicies, 4'000'000);
    const double work = problem_.ideal / problem_.microbatches;
    for (const double spacing : {0.0, 0.9 * work})
      for (const double hold : {0.0, 0.5, 1.0})
        for (const double fill : {0.0, 0.5, 1.0}) {
          ListPolicy policy{.hold = hold, .fill = fill, .spacing = spacing, .in_flight = {}};
          do {
            if (left-- <= 0) break;
            if (auto made = list_schedule(problem_, policy))
              orders.emplace_back(by_makespan(clock_.run(made->order)), std::move(made->order));
          } while (std::ranges::next_permutation(policy.priority).found);
        }
    std::ranges::stable_sort(orders, {}, &std::pair<Score, Order>::first);
    const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
    const auto repetitions = std::ranges::unique(orders, same);
    orders.erase(repetitions.begin(), repetitions.end());
    return orders;
  }

  void consider(const Order& order) {
    if (order.empty() || !within_bounds(problem_, order)) return;
    const Figures figures = clock_.run(order);
    if (by_makespan(figures) >= score_) return;
    score_ = by_makespan(figures);
    makespan_ = figures.makespan;
    best_ = order;
  }

  const OrderProblem& problem_;
  VShape shape_;
  double goal_;  ///< for the makespan
  OrderClock clock_;
  Order best_;
  double makespan_ = kNever;
  Score score_{kNever, kNever};
};

/// F = I = W in all stages, and messages take nothing (or nothing but messages takes any time).
bool fits_published(const OrderProblem& problem) {
  if (problem.message > 0 && problem.ideal > 0) return false;
  return std::ranges::all_of(problem.costs, [&](const auto& stage) {
    return std::ranges::all_of(stage, [&](double cost) { return cost == problem.costs[0][0]; });
  });
}

Schedule on_a_v(const ScheduleRequest& request, VShape shape) {
  const std::string fault = v_rule(request);
  if (!fault.empty()) throw ConfigError(fault);
  OrderProblem problem = order_problem(request, v_placement(request.ranks));
  const double most = published_peak(shape, request.ranks);
  problem.bounds = {{{1, -1, 0}, most}, {{0, 1, -1}, most}};
  if (request.memory_limit > 0)
    problem.bounds.push_back(
        {{request.memory.forward, request.memory.input, request.memory.weight}, request.memory_limit});
  if (fits_published(problem)) {
    const Order order = published_order(problem, shape);
    if (within_bounds(problem, order)) return to_schedule(problem, order, request.name);
  }
  return to_schedule(problem, VSearch(problem, shape, one_f_one_b_makespan(request, problem)).run(), request.name);
}

}  // namespace

Schedule zb_v(const ScheduleRequest& request) { return on_a_v(request, VShape::zero_bubble); }
Schedule v_half(const ScheduleRequest& request) { return on_a_v(request, VShape::half); }
Schedule v_min(const ScheduleRequest& request) { return on_a_v(request, VShape::third); }

std::string v_rule(const ScheduleRequest& request) {
  const auto& [forward, input, weight] = request.memory;
  const double least = 2 * forward + std::max(0.0, input);
  if (request.memory_limit <= 0 || request.memory_limit >= least) return memory_model_rule(request);
  return fmt::format(
      "schedule {} with memory_limit = {}, but one micro-batch takes {} on a rank; give at least that much",
      request.name, request.memory_limit, least);
}

}  // namespace orthant::pipeline
