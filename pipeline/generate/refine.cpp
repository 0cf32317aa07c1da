// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/generate/refine.hpp>

#include <algorithm>
#include <random>

namespace orthant::pipeline {
namespace {

/// Moves that one critical path is tried with before another is traced (there are often several).
constexpr int kTriesPerPath = 20;
/// Most moves go a little way, some of them farther.
constexpr unsigned kNear = 3, kFar = 12;

class Refinement {
 public:
  Refinement(const OrderProblem& problem, Objective objective, Order& order)
      : problem_(problem), objective_(objective), order_(order), clock_(problem) {
    position_.resize(3 * static_cast<std::size_t>(problem.pairs()));
    for (std::size_t rank = 0; rank < order.size(); ++rank) note_positions(rank, 0, order[rank].size());
    score_ = objective_(clock_.run(order_));
    ends_ = clock_.ends();
  }

  void run(int tries) {
    for (int i = 0, left_on_path = 0; i < tries; ++i) {
      if (left_on_path-- == 0) {
        trace_path();
        left_on_path = kTriesPerPath;
      }
      if (try_move(path_[random_() % path_.size()])) left_on_path = 0;
    }
  }

 private:
  struct Place {
    std::size_t rank;
    std::size_t at;
  };

  void note_positions(std::size_t rank, std::size_t from, std::size_t to) {
    for (std::size_t at = from; at < to; ++at) position_[static_cast<std::size_t>(order_[rank][at].index)] = at;
  }

  double end_of(Step step) const { return ends_[static_cast<std::size_t>(step.index)]; }

  /// From the last step of the rank that ends last, or has the longest span, back along what each step waited for.
  void trace_path() {
    path_.clear();
    const bool by_span = random_() % 2 == 0;
    Place place{0, 0};
    double latest = -1;
    for (std::size_t rank = 0; rank < order_.size(); ++rank) {
      const Step first = order_[rank].front();
      const double end = end_of(order_[rank].back()) - (by_span ? end_of(first) - problem_.cost(first) : 0);
      if (end > latest) {
        latest = end;
        place = {rank, order_[rank].size() - 1};
      }
    }
    while (true) {
      path_.push_back(place);
      const Step step = order_[place.rank][place.at];
      const double begin = end_of(step) - problem_.cost(step);
      const auto [source, arrival] = input_of(step);
      const bool waited_for_input = arrival >= begin - problem_.epsilon;
      const bool waited_for_rank = place.at > 0 && end_of(order_[place.rank][place.at - 1]) >= begin - problem_.epsilon;
      if (waited_for_input && !(waited_for_rank && random_() % 2 == 0)) {
        place = {static_cast<std::size_t>(problem_.placement[static_cast<std::size_t>(source.stage)]),
                 position_[static_cast<std::size_t>(source.index)]};
      } else if (place.at > 0) {
        --place.at;
      } else {
        return;
      }
    }
  }

  struct Input {
    Step source;
    double arrival;  ///< -1: it has none
  };
  Input input_of(Step step) const {
    const int target = step.kind == kF ? step.stage - 1 : step.stage + 1;
    if (step.kind == kW || target < 0 || target == problem_.stages) return {{}, -1};
    const Step source = problem_.step(step.kind, target, problem_.microbatch_of(step));
    return {source, end_of(source) + problem_.hop(target, step.stage)};
  }

  bool try_move(Place place) {
    auto& steps = order_[place.rank];
    const unsigned reach = random_() % 4 == 0 ? kFar : kNear;
    const std::size_t distance = 1 + random_() % reach;
    const bool later = random_() % 2 == 0;
    if (later ? place.at + distance >= steps.size() : place.at < distance) return false;
    const std::size_t to = later ? place.at + distance : place.at - distance;
    if (!may_pass(steps, place.at, to)) return false;
    move(steps, place.at, to);
    if (within_bounds(problem_, steps)) {
      const Score score = objective_(clock_.run(order_));
      if (score <= score_) {
        score_ = score;
        ends_ = clock_.ends();
        note_positions(place.rank, std::min(place.at, to), std::max(place.at, to) + 1);
        return true;
      }
    }
    move(steps, to, place.at);
    return false;
  }

  static void move(std::vector<Step>& steps, std::size_t from, std::size_t to) {
    const auto at = [&](std::size_t i) { return steps.begin() + static_cast<std::ptrdiff_t>(i); };
    if (from < to) {
      std::rotate(at(from), at(from + 1), at(to + 1));
    } else {
      std::rotate(at(to), at(from), at(from + 1));
    }
  }

  /// Micro-batches stay in order, and F, I, W of one too. (What depends on it through other ranks shows in the clock.)
  bool may_pass(const std::vector<Step>& steps, std::size_t from, std::size_t to) const {
    const Step moved = steps[from];
    const auto [first, last] = from < to ? std::pair(from + 1, to) : std::pair(to, from - 1);
    for (std::size_t i = first; i <= last; ++i) {
      if (steps[i].stage == moved.stage &&
          (steps[i].kind == moved.kind || problem_.microbatch_of(steps[i]) == problem_.microbatch_of(moved)))
        return false;
    }
    return true;
  }

  const OrderProblem& problem_;
  Objective objective_;
  Order& order_;
  OrderClock clock_;
  Score score_{};
  std::vector<double> ends_;           ///< of the order as it is, by Step::index
  std::vector<std::size_t> position_;  ///< in its rank's list, by Step::index
  std::vector<Place> path_;
  std::mt19937 random_{1};  ///< its raw numbers are the same everywhere
};

}  // namespace

void refine(const OrderProblem& problem, Objective objective, int tries, Order& order) {
  Refinement(problem, objective, order).run(tries);
}

}  // namespace orthant::pipeline
