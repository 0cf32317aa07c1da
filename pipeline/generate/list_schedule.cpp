// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/generate/list_schedule.hpp>

#include <algorithm>

#include <orthant/pipeline/generate/order_clock.hpp>

namespace orthant::pipeline {
namespace {

/// Something that a rank could do: a step, when its input arrives, and how much it is wanted.
struct Candidate {
  Step step;
  double arrival;
  int priority;
};

class ListScheduler {
 public:
  ListScheduler(const OrderProblem& problem, const ListPolicy& policy)
      : problem_(problem),
        policy_(policy),
        ends_(3 * static_cast<std::size_t>(problem.pairs()), kNever),
        done_(static_cast<std::size_t>(problem.stages)),
        ranks_(static_cast<std::size_t>(problem.ranks), Rank(problem)),
        wakes_(ranks_.size()),
        order_(ranks_.size()) {
    for (auto& steps : order_) steps.reserve(ends_.size() / ranks_.size());
  }

  std::optional<ListOrder> run() {
    for (std::size_t left = ends_.size(); left > 0;) {
      const auto awake = std::ranges::min_element(wakes_);
      if (*awake == kNever) return std::nullopt;
      const auto rank = static_cast<std::size_t>(awake - wakes_.begin());
      ranks_[rank].now = std::max(ranks_[rank].now, *awake);
      if (const auto step = choose(rank)) {
        execute(rank, *step);
        --left;
      } else {
        *awake = next_arrival_;
      }
    }
    return ListOrder{std::move(order_), was_stopped_};
  }

 private:
  struct Rank {
    explicit Rank(const OrderProblem& problem) : holding(problem) {}
    double now = 0;
    int in_flight = 0;
    Holding holding;
  };

  double end_of(StepKind kind, int stage, int microbatch) const {
    return ends_[static_cast<std::size_t>(problem_.step(kind, stage, microbatch).index)];
  }
  int done(StepKind kind, int stage) const { return done_[static_cast<std::size_t>(stage)][kind]; }

  /// What the rank does now; none: it waits until next_arrival_.
  std::optional<Step> choose(std::size_t rank) {
    const auto& stages = problem_.stages_of[rank];
    next_arrival_ = kNever;
    weight_helps_ = false;
    candidates_ = 0;
    consider_forward(rank, stages.front(), stages.back(), policy_.priority[0]);
    if (stages.size() > 1) {
      consider_forward(rank, stages.back(), stages.back(), policy_.priority[1]);
      consider_input(rank, stages.back(), policy_.priority[2]);
    }
    consider_input(rank, stages.front(), policy_.priority[3]);
    const double now = ranks_[rank].now;
    const std::optional<Candidate> best = preferred(now);
    if (best && !worth_holding(*best, now)) return best->step;
    const std::optional<Step> weight = oldest_weight(stages);
    if (!weight) return std::nullopt;
    const double wait = next_arrival_ - now;
    const bool fits = wait >= policy_.fill * problem_.cost(*weight) - problem_.epsilon;
    return fits || weight_helps_ ? weight : std::nullopt;
  }

  void consider_forward(std::size_t rank, int stage, int last_stage, int priority) {
    const int microbatch = done(kF, stage);
    if (microbatch == problem_.microbatches) return;
    double arrival = policy_.spacing * microbatch;
    if (stage > 0) arrival = end_of(kF, stage - 1, microbatch) + problem_.hop(stage - 1, stage);
    if (arrival == kNever) return;
    if (!policy_.in_flight.empty() && ranks_[rank].in_flight >= policy_.in_flight[rank]) return;
    consider({problem_.step(kF, stage, microbatch), arrival, priority}, rank,
             {.forwards = stage == last_stage ? 0 : 1, .inputs = 1});
  }

  void consider_input(std::size_t rank, int stage, int priority) {
    const int microbatch = done(kI, stage);
    if (microbatch >= done(kF, stage)) return;
    const bool last = stage + 1 == problem_.stages;
    const double arrival =
        last ? end_of(kF, stage, microbatch) : end_of(kI, stage + 1, microbatch) + problem_.hop(stage + 1, stage);
    if (arrival != kNever) consider({problem_.step(kI, stage, microbatch), arrival, priority}, rank, {});
  }

  void consider(const Candidate& candidate, std::size_t rank, Holding::Room room) {
    if (const Bound* bound = ranks_[rank].holding.stopped_by(candidate.step.kind, room)) {
      was_stopped_ = true;
      weight_helps_ = weight_helps_ || bound->change[kW] < 0;
      return;
    }
    if (candidate.arrival > ranks_[rank].now + problem_.epsilon)
      next_arrival_ = std::min(next_arrival_, candidate.arrival);
    considered_[candidates_++] = candidate;
  }

  std::optional<Candidate> preferred(double now) const {
    std::optional<Candidate> best;
    for (std::size_t i = 0; i < candidates_; ++i) {
      if (considered_[i].arrival <= now + problem_.epsilon && (!best || considered_[i].priority < best->priority))
        best = considered_[i];
    }
    return best;
  }

  bool worth_holding(const Candidate& best, double now) const {
    return std::any_of(considered_.begin(), considered_.begin() + candidates_, [&](const Candidate& other) {
      return other.priority < best.priority && other.arrival > now + problem_.epsilon &&
             other.arrival < now + policy_.hold * problem_.cost(best.step);
    });
  }

  std::optional<Step> oldest_weight(const std::vector<int>& stages) const {
    std::optional<Step> oldest;
    double oldest_end = kNever;
    for (const int stage : stages) {
      const int microbatch = done(kW, stage);
      if (microbatch >= done(kI, stage)) continue;
      const double end = end_of(kI, stage, microbatch);
      if (end < oldest_end) {
        oldest_end = end;
        oldest = problem_.step(kW, stage, microbatch);
      }
    }
    return oldest;
  }

  void execute(std::size_t rank, Step step) {
    Rank& state = ranks_[rank];
    const double end = state.now + problem_.cost(step);
    ends_[static_cast<std::size_t>(step.index)] = end;
    ++done_[static_cast<std::size_t>(step.stage)][step.kind];
    order_[rank].push_back(step);
    state.holding.apply(step.kind);
    state.in_flight += step.kind == kF ? 1 : step.kind == kI ? -1 : 0;
    state.now = wakes_[rank] = end;
    const int target = step.kind == kF ? step.stage + 1 : step.stage - 1;
    if (step.kind == kW || target < 0 || target == problem_.stages) return;
    const auto receiver = static_cast<std::size_t>(problem_.placement[static_cast<std::size_t>(target)]);
    const double arrival = end + problem_.hop(step.stage, target);
    wakes_[receiver] = std::min(wakes_[receiver], std::max(ranks_[receiver].now, arrival));
  }

  const OrderProblem& problem_;
  const ListPolicy& policy_;
  std::vector<double> ends_;              ///< by Step::index
  std::vector<std::array<int, 3>> done_;  ///< of each stage: F's, I's, W's
  std::vector<Rank> ranks_;
  std::vector<double> wakes_;  ///< when each rank decides again; kNever: when something arrives
  Order order_;
  bool was_stopped_ = false;
  // Of the decision that is being taken:
  std::array<Candidate, 4> considered_;
  std::size_t candidates_ = 0;
  double next_arrival_ = kNever;
  bool weight_helps_ = false;  ///< a bound stops something, and W relieves it
};

}  // namespace

std::optional<ListOrder> list_schedule(const OrderProblem& problem, const ListPolicy& policy) {
  return ListScheduler(problem, policy).run();
}

}  // namespace orthant::pipeline
