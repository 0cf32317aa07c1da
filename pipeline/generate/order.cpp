// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/generate/order.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace orthant::pipeline {
namespace {

constexpr std::array kKinds{OpKind::forward, OpKind::backward_input, OpKind::backward_weight};

/// Bounds are sums of a few numbers of about the same size.
constexpr double kRounding = 1e-9;

}  // namespace

std::string memory_model_rule(const ScheduleRequest& request) {
  const auto& [forward, input, weight] = request.memory;
  if (forward > 0 && weight <= 0 && std::abs(forward + input + weight) <= 1e-6 * forward) return {};
  return fmt::format("schedule {} with memory F {:+}, I {:+}, W {:+}; F must add, W must not, and the sum must be 0",
                     request.name, forward, input, weight);
}

OrderProblem order_problem(const ScheduleRequest& request, Placement placement) {
  OrderProblem problem;
  problem.ranks = request.ranks;
  problem.stages = static_cast<int>(placement.size());
  problem.microbatches = request.microbatches;
  problem.message = request.costs.message;
  problem.stages_of.resize(static_cast<std::size_t>(request.ranks));
  std::vector<double> work(problem.stages_of.size());
  for (std::size_t stage = 0; stage < placement.size(); ++stage) {
    const StageCosts& costs = request.costs.stages[request.costs.stages.size() == 1 ? 0 : stage];
    const auto rank = static_cast<std::size_t>(placement[stage]);
    problem.stages_of[rank].push_back(static_cast<int>(stage));
    problem.costs.push_back({costs.forward, costs.input, costs.weight});
    work[rank] += request.microbatches * (costs.forward + costs.input + costs.weight);
  }
  problem.placement = std::move(placement);
  problem.ideal = std::ranges::max(work);
  problem.epsilon = std::max(1e-9 * problem.ideal / request.microbatches, 1e-30);
  return problem;
}

Schedule to_schedule(const OrderProblem& problem, const Order& order, const std::string& name) {
  Schedule schedule{.name = name,
                    .stages = problem.stages,
                    .microbatches = problem.microbatches,
                    .placement = problem.placement,
                    .ranks = {}};
  for (const auto& steps : order) {
    auto& ops = schedule.ranks.emplace_back();
    for (const Step step : steps)
      ops.push_back({kKinds[step.kind], StageId{step.stage}, MicrobatchId{problem.microbatch_of(step)}});
  }
  return schedule;
}

Order to_order(const OrderProblem& problem, const Schedule& schedule) {
  Order order;
  for (const auto& ops : schedule.ranks) {
    auto& steps = order.emplace_back();
    for (const Op& op : ops) {
      const auto kind = std::ranges::find(kKinds, op.kind) - kKinds.begin();
      steps.push_back(problem.step(static_cast<StepKind>(kind), op.stage.value, op.microbatch.value));
    }
  }
  return order;
}

const Bound* Holding::stopped_by(StepKind kind, Room room) const {
  for (std::size_t i = 0; i < bounds_->size(); ++i) {
    const Bound& bound = (*bounds_)[i];
    if (bound.change[kind] <= 0) continue;
    const double added = bound.change[kind] + room.forwards * std::max(0.0, bound.change[kF]) +
                         room.inputs * std::max(0.0, bound.change[kI]);
    if (held_[i] + added > bound.most * (1 + kRounding)) return &bound;
  }
  return nullptr;
}

void Holding::apply(StepKind kind) {
  for (std::size_t i = 0; i < bounds_->size(); ++i) held_[i] += (*bounds_)[i].change[kind];
}

bool within_bounds(const OrderProblem& problem, const std::vector<Step>& steps) {
  Holding holding(problem);
  for (const Step step : steps) {
    if (!holding.allows(step.kind)) return false;
    holding.apply(step.kind);
  }
  return true;
}

bool within_bounds(const OrderProblem& problem, const Order& order) {
  return std::ranges::all_of(order, [&](const auto& steps) { return within_bounds(problem, steps); });
}

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
