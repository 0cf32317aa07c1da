// SPDX-License-Identifier: Apache-2.0
// What a rank holds of its parameters from the first step to the last, by what it is for. dp and fsdp say it of
// themselves, each as a pure function; memory plans add it up.
#pragma once

#include <cstdint>

#include <orthant/core/base/dtype.hpp>

namespace orthant::memory {

/// Of one element, where weights are of `precision`.
struct ElementBytes {
  explicit constexpr ElementBytes(DType precision, DType moments = DType::f32)
      : weight(static_cast<std::int64_t>(size_of(precision))),
        wide(precision == DType::f64 ? 8 : 4),
        master(precision == DType::bf16 ? wide : 0),
        moment(moments == DType::bf16 ? 2 : wide) {}

  std::int64_t weight;
  std::int64_t wide;    ///< of masters and gradients
  std::int64_t master;  ///< beside the weight: 0 where the weight is its own master
  std::int64_t moment;  ///< of each of the two
};

struct StateBytes {
  std::int64_t weights = 0;    ///< in compute precision: the rank's own, whole or a shard
  std::int64_t gradients = 0;  ///< reduced, whole or a shard
  std::int64_t optimizer = 0;  ///< master weights beside bf16 ones, moments
  std::int64_t buffers = 0;    ///< gathered weights and unreduced gradients

  std::int64_t total() const { return weights + gradients + optimizer + buffers; }
  friend bool operator==(const StateBytes&, const StateBytes&) = default;
};

}  // namespace orthant::memory
