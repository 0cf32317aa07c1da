// SPDX-License-Identifier: Apache-2.0
// The proof that a lowered schedule computes every gradient once and cannot hang: every operation stands where it must,
// exactly once; what it needs stands before it; no channel holds more than its slots. That it cannot hang is shown
// twice: on streams (the joint graph of stream order, data, slots and messages, in which a SEND and its RECV are one
// event, has no cycle), which is how the executor runs it, and in line (a walk over all ranks with unbuffered sends,
// the strictest transport, reaches the end of every list).
#pragma once

#include <string>
#include <vector>

#include <orthant/pipeline/cost/costs.hpp>
#include <orthant/pipeline/schedule/schedule.hpp>

namespace orthant::pipeline {

struct Proof {
  std::vector<std::string> problems;  ///< each offending operation in words, the first one first; empty: it is safe
  std::string hang_on_streams;        ///< where it stands still when messages have streams of their own; "": nowhere
  std::string hang_in_line;           ///< likewise, every rank running its list in line with unbuffered sends
  bool sums_in_order = true;  ///< F, B or I, and B or W of each stage come in micro-batch order: the same bits in
                              ///< every schedule for which it holds
  std::vector<int> peak_activations;  ///< per rank: chunks between F and the end of B or I
};

struct MemoryBound {
  MemoryModel memory = {};
  double limit = 0;  ///< most activation memory of a rank, in units of `memory`; 0: none
};

/// problems holds the hangs too. First come operations that are missing, foreign or repeated, in which case nothing
/// further is asked but the peaks; then those out of order; then those without a slot or over the memory bound.
Proof validate(const Schedule& lowered, const MemoryBound& bound = {});

}  // namespace orthant::pipeline
