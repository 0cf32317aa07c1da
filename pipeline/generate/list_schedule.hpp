// SPDX-License-Identifier: Apache-2.0
// A greedy scheduler: on a common clock, each rank that becomes free takes what its policy prefers among what has
// arrived and what its bounds allow. One pass makes a whole order; searches try many policies.
#pragma once

#include <optional>

#include <orthant/pipeline/generate/order.hpp>

namespace orthant::pipeline {

struct ListPolicy {
  /// The lower the better: F of the rank's first stage, F of its last, I of its last, I of its first. A rank with one
  /// stage has the outer two.
  std::array<int, 4> priority{0, 1, 2, 3};
  /// Waits for a preferred operation that arrives within this share of the duration of what could begin now.
  double hold = 0;
  /// Runs a W while it waits if this share of it fits into the wait.
  double fill = 0;
  /// Forwards of the first stage begin no closer than this.
  double spacing = 0;
  /// Most micro-batches of each rank between F and I; empty: as the bounds say.
  std::vector<int> in_flight;
};

struct ListOrder {
  Order order;
  bool was_stopped = false;  ///< by a bound, sometime: else larger bounds give the same order
};

/// At most two stages a rank. F leaves room in the bounds for I, and F of the first of two stages for F of the second,
/// so that the oldest micro-batch can always go on. returns an order within the bounds; none if they stop every rank.
std::optional<ListOrder> list_schedule(const OrderProblem& problem, const ListPolicy& policy);

}  // namespace orthant::pipeline
