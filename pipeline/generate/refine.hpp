// SPDX-License-Identifier: Apache-2.0
// Local search on whole orders: moves a step of a critical path past its neighbours on the rank, keeps what is no
// worse.
#pragma once

#include <orthant/pipeline/generate/order_clock.hpp>

namespace orthant::pipeline {

/// Makes the order better by `tries` moves; the result is within the bounds and never worse. The same for the same
/// arguments.
void refine(const OrderProblem& problem, Objective objective, int tries, Order& order);

}  // namespace orthant::pipeline
