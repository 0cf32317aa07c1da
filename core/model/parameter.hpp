// SPDX-License-Identifier: Apache-2.0
// A parameter as a layer sees it: views of the flat weight and gradient buffers, bound by whoever owns the buffers (dp,
// fsdp). Layers never allocate weights, and weight gradients never become .grad tensors.
#pragma once

#include <deque>
#include <utility>

#include <ATen/core/Tensor.h>
#include <orthant/core/model/kernels/accumulate.hpp>
#include <orthant/core/shard/parameter_table.hpp>

namespace orthant::model {

struct Parameter {
  UnitId unit;
  shard::Region region;
  at::Tensor weight;      ///< region.shape, compute precision
  at::Tensor grad;        ///< region.shape, accumulation precision; undefined where it never trains
  bool overwrite = true;  ///< the next contribution replaces what is in `grad` (first since the last reduction)
  bool trains = true;     ///< false: frozen, no gradient is computed

  /// How the next contribution enters `grad`; later ones add.
  kernels::Accumulate next_contribution() {
    return std::exchange(overwrite, false) ? kernels::Accumulate::overwrite : kernels::Accumulate::add;
  }
};

class ParameterStore {
 public:
  /// References stay valid for the store's life.
  Parameter& add(UnitId unit, shard::Region region);
  /// The parameter of that unit and region, or nullptr.
  Parameter* find(UnitId unit, std::int64_t offset);
  /// Points every parameter of the unit into the flat buffers (1-D, at least the unit's numel elements).
  void bind(UnitId unit, const at::Tensor& weights, const at::Tensor& grads);
  /// The next contribution to each gradient of the unit replaces what is there.
  void overwrite_gradients(UnitId unit);
  void set_trains(UnitId unit, bool trains);
  /// Gradients of the unit to which nothing has contributed since overwrite_gradients() become zero: their memory may
  /// hold what another unit left there.
  void zero_unwritten(UnitId unit);

 private:
  std::deque<Parameter> parameters_;
};

}  // namespace orthant::model
