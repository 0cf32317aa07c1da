// SPDX-License-Identifier: Apache-2.0
// What a rank holds of its parameters from the first step to the last, by what it is for. dp and fsdp say it of
// themselves, each as a pure function; memory plans add it up.
#pragma once

#include <cstdint>

namespace orthant::memory {

struct StateBytes {
  std::int64_t weights = 0;    ///< in compute precision: the rank's own, whole or a shard
  std::int64_t gradients = 0;  ///< reduced, whole or a shard
  std::int64_t optimizer = 0;  ///< master weights beside bf16 ones, moments
  std::int64_t buffers = 0;    ///< gathered weights and unreduced gradients

  std::int64_t total() const { return weights + gradients + optimizer + buffers; }
  friend bool operator==(const StateBytes&, const StateBytes&) = default;
};

}  // namespace orthant::memory
