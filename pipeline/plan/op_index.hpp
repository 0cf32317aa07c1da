// SPDX-License-Identifier: Apache-2.0
// Where each operation of a schedule stands in its rank's list, and who makes and who reads each message.
#pragma once

#include <vector>

#include <orthant/pipeline/schedule/schedule.hpp>

namespace orthant::pipeline {

class OpIndex {
 public:
  explicit OpIndex(const Schedule& schedule);

  /// Whether the pipeline has such a stage, which sees such a micro-batch, and the kind is a computation or a message.
  bool in_range(const Op& op) const;
  /// Of its first occurrence in the list of its stage's rank; -1: none.
  int position(const Op& op) const { return in_range(op) ? positions_[slot(op)] : -1; }
  bool has(const Op& op) const { return position(op) >= 0; }

  /// B where it is not split, else I.
  Op backward_of(StageId stage, MicrobatchId microbatch) const;
  /// The computation that makes what a SEND takes.
  Op producer_of(const Op& send) const;
  /// The computation that takes what a RECV brings.
  Op reader_of(const Op& receive) const;

 private:
  std::size_t slot(const Op& op) const;

  const Schedule& schedule_;
  std::vector<int> positions_;  ///< per kind, stage, micro-batch
};

}  // namespace orthant::pipeline
