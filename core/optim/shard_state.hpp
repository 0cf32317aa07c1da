// SPDX-License-Identifier: Apache-2.0
// What the optimizer sees of a flat unit: this rank's slice of master weights, gradient and moments, all flat. Made and
// owned by dp (whole units) and fsdp (1/degree of each); the optimizer knows neither.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <orthant/core/base/id.hpp>

namespace orthant::optim {

struct ShardState {
  UnitId unit;
  std::int64_t begin = 0;    ///< first element of the slice in the flat unit
  at::Tensor master;         ///< [n] fp32, or fp64 when training in fp64
  at::Tensor weight;         ///< [n] compute precision; the same tensor as `master` unless that is bf16
  at::Tensor grad;           ///< [n] like master: reduced over dp, summed over tokens (not yet divided by their number)
  at::Tensor exp_avg;        ///< [n] like master, or bf16 beside fp32
  at::Tensor exp_avg_sq;     ///< [n] like exp_avg
  std::int64_t updates = 0;  ///< optimizer steps done: AdamW's bias correction counts a slice's own
  bool trains = true;        ///< in some step; else gradient and moments are undefined and `master` is `weight`
  double lr_scale = 1.0;     ///< times the schedule's rate
  std::optional<double> weight_decay = {};  ///< in place of the optimizer's
  bool decays = true;                       ///< weight decay applies
  bool counted = true;  ///< this rank adds the slice to the global gradient norm and writes it to files
};

}  // namespace orthant::optim
