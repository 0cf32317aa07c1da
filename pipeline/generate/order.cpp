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

}  // namespace orthant::pipeline
