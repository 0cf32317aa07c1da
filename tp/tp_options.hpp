// SPDX-License-Identifier: Apache-2.0
// What tensor parallelism lets the user choose, and the rates from which declared costs are estimated.
#pragma once

#include <cstdint>

namespace orthant::tp {

struct TpOptions {
  /// Norms and residual sums see a range of the rows instead of all of them.
  bool sequence_parallel = true;
  /// false: every collective is waited for as soon as it is posted (to measure what the overlap is worth).
  bool overlap = true;
  /// Column-parallel layers keep the gathered rows of their input for the weight gradient: more memory, no second
  /// gather.
  bool keep_gathered = false;
  /// Forward gathers the rows in so many pieces and multiplies one while the next ones travel.
  int gather_pieces = 1;

  // Declared costs, which only the virtual clock reads: a core and a link of the size of a small CPU node's.
  double flops_per_us = 5e4;
  double bytes_per_us = 5e3;
  std::int64_t element_bytes = 4;  ///< of an activation
};

}  // namespace orthant::tp
