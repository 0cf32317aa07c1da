// SPDX-License-Identifier: Apache-2.0
// The proof that a lowered schedule computes every gradient once, in order, and cannot hang: every operation stands
// where it must, exactly once; what it needs stands before it; no channel holds more than its slots; and a walk over
// all ranks with unbuffered in-line sends, the strictest transport, reaches the end of every list, each SEND meeting
// its own RECV.
#pragma once

#include <orthant/pipeline/schedule.hpp>

namespace orthant::pipeline {

struct Proof {
  std::vector<std::string> problems;  ///< each offending operation in words; empty: the schedule is safe
  std::vector<int> peak_activations;  ///< per stage: micro-batches between F and the end of B or I
};

/// In each stage F, B or I (norm gradients) and B or W come in micro-batch order: sums have an order, the same in every
/// schedule.
Proof validate(const Schedule& lowered);

}  // namespace orthant::pipeline
