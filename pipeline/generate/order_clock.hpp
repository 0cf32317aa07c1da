// SPDX-License-Identifier: Apache-2.0
// Times an order in a few nanoseconds a step, with the same result as time_schedule(): searches do so thousands of
// times.
#pragma once

#include <limits>

#include <orthant/pipeline/generate/order.hpp>

namespace orthant::pipeline {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Figures {
  double makespan = kNever;  ///< kNever: the ranks wait for each other for ever
  double span = kNever;
  double mean_span = kNever;  ///< of the ranks: tells orders apart whose longest span is the same
};

/// What to make small: compared in order.
using Score = std::array<double, 2>;
using Objective = Score (*)(const Figures&);

/// Times orders of one problem; keeps its memory from one call to the next.
class OrderClock {
 public:
  explicit OrderClock(const OrderProblem& problem);

  Figures run(const Order& order);
  /// When each step ended in the last run(), by Step::index.
  const std::vector<double>& ends() const { return ends_; }

  /// Takes an order of F and I only and puts W's where a rank waits, as long as `share` of one fits into the wait, and
  /// where a bound asks for it. `filled`, unless null, receives the order with its W's.
  Figures run_filled(const Order& order, double share, Order* filled = nullptr);

 private:
  struct Rank {
    std::size_t next = 0;  ///< place in the order
    double now = 0;
    double first = -1;          ///< begin of the first step; -1: none yet
    std::vector<Step> weights;  ///< W's that run_filled() may place, in order
    std::size_t weights_done = 0;
  };

  template <class Before, class After>
  Figures play(const Order& order, Before before, After after);
  double input_at(Step step) const;

  const OrderProblem& problem_;
  std::vector<double> ends_;
  std::vector<Rank> ranks_;
};

}  // namespace orthant::pipeline
