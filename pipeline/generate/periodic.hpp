// SPDX-License-Identifier: Apache-2.0
// Search for the pattern that a V repeats: a few micro-batches' F and I on each rank, in cyclic order. A move changes
// every repetition, so that what it takes does not grow with the number of micro-batches.
#pragma once

#include <orthant/pipeline/generate/order_clock.hpp>
#include <orthant/pipeline/generate/v_pattern.hpp>

namespace orthant::pipeline {

/// When the F's and I's of the repeated micro-batches begin on each rank: F of its first stage, F of its second, I of
/// its second, I of its first. Those that follow begin a period later.
struct Pattern {
  using Places = std::array<std::vector<double>, 4>;
  std::vector<Places> begins;  ///< of each rank
  double period = 1;
  int repeated() const { return static_cast<int>(begins.front().front().size()); }
};

/// The published block, repeated.
Pattern block_pattern(VShape shape, int ranks, int repeated);
/// What happens to some micro-batches in the middle of an order.
Pattern middle_pattern(const OrderProblem& problem, const Order& order, int repeated);

struct PeriodicSearch {
  int tries = 1000;
  double fill = 0.5;  ///< W's as in OrderClock::run_filled()
};

/// problem  on v_placement().
/// returns  the best order found, with its W's and within the bounds; empty if none is. The same for the same
/// arguments.
Order search_periodic(const OrderProblem& problem, Objective objective, const Pattern& start,
                      const PeriodicSearch& search);

}  // namespace orthant::pipeline
