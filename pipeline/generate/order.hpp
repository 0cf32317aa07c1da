// SPDX-License-Identifier: Apache-2.0
// What a schedule search works on: the request in flat arrays, orders of steps instead of schedules, and what bounds
// them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <orthant/pipeline/generate/request.hpp>
#include <orthant/pipeline/schedule/schedule.hpp>

namespace orthant::pipeline {

/// F, I or W: places in the arrays below.
enum StepKind : std::uint8_t { kF, kI, kW };

/// One computation of a stage and a micro-batch.
struct Step {
  int index = 0;  ///< (kind * stages + stage) * micro-batches + micro-batch
  std::int16_t stage = 0;
  StepKind kind = kF;
};

/// The computations of each rank in order. In each stage F, I and W come in micro-batch order.
using Order = std::vector<std::vector<Step>>;

constexpr std::size_t kMostBounds = 3;

/// Something that a rank may hold only so much of: F, I and W change it as in MemoryModel.
struct Bound {
  std::array<double, 3> change;
  double most;
};

struct OrderProblem {
  int ranks = 1;
  int stages = 1;
  int microbatches = 1;
  Placement placement;
  std::vector<std::vector<int>> stages_of;   ///< of each rank, ascending
  std::vector<std::array<double, 3>> costs;  ///< of each stage: F, I, W
  double message = 0;
  double ideal = 0;           ///< work of the busiest rank
  double epsilon = 0;         ///< far below any cost: times closer than this are the same
  std::vector<Bound> bounds;  ///< of each rank

  int pairs() const { return stages * microbatches; }  ///< of a stage and a micro-batch
  Step step(StepKind kind, int stage, int microbatch) const {
    return {(kind * stages + stage) * microbatches + microbatch, static_cast<std::int16_t>(stage), kind};
  }
  int microbatch_of(Step step) const { return step.index % microbatches; }
  double cost(Step step) const { return costs[static_cast<std::size_t>(step.stage)][step.kind]; }
  /// What a message between two stages takes: nothing on one rank.
  double hop(int from, int to) const {
    return placement[static_cast<std::size_t>(from)] == placement[static_cast<std::size_t>(to)] ? 0 : message;
  }
};

/// The rule that a search's memory model breaks: "" if none.
std::string memory_model_rule(const ScheduleRequest& request);

/// No bounds yet.
OrderProblem order_problem(const ScheduleRequest& request, Placement placement);
/// The order as a schedule of compute operations.
Schedule to_schedule(const OrderProblem& problem, const Order& order, const std::string& name);

/// The compute operations of a schedule without B as an order.
Order to_order(const OrderProblem& problem, const Schedule& schedule);

/// What a rank holds, by bound.
class Holding {
 public:
  explicit Holding(const OrderProblem& problem) : bounds_(&problem.bounds) {}
  /// What must still fit after a step.
  struct Room {
    int forwards = 0, inputs = 0;
  };
  /// The bound that stops one more of the kind; null: none does.
  const Bound* stopped_by(StepKind kind, Room room) const;
  const Bound* stopped_by(StepKind kind) const { return stopped_by(kind, {}); }
  bool allows(StepKind kind) const { return stopped_by(kind) == nullptr; }
  void apply(StepKind kind);

 private:
  const std::vector<Bound>* bounds_;
  std::array<double, kMostBounds> held_{};
};

/// Whether one rank's list keeps within the bounds.
bool within_bounds(const OrderProblem& problem, const std::vector<Step>& steps);
bool within_bounds(const OrderProblem& problem, const Order& order);

}  // namespace orthant::pipeline
