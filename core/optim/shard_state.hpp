// SPDX-License-Identifier: Apache-2.0
// What the optimizer sees of a flat unit: this rank's slice of master weights, gradient and moments, all flat. Made and
// owned by dp (whole units) and fsdp (1/degree of each); the optimizer knows neither.
#pragma once

#include <ATen/core/Tensor.h>
#include <orthant/core/base/id.hpp>

namespace orthant::optim {

struct ShardState {
  UnitId unit;
  std::int64_t begin = 0;  ///< first element of the slice in the flat unit
  at::Tensor master;       ///< [n] fp32, or fp64 when training in fp64
  at::Tensor weight;       ///< [n] compute precision; the same tensor as `master` unless that is bf16
  at::Tensor grad;         ///< [n] like master: reduced over dp, summed over tokens (not yet divided by their number)
  at::Tensor exp_avg;      ///< [n] like master
  at::Tensor exp_avg_sq;   ///< [n] like master
  bool decays = true;      ///< weight decay applies
  bool counted = true;     ///< this rank adds the slice to the global gradient norm and writes it to files
};

}  // namespace orthant::optim
