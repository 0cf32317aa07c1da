// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/parameter.hpp>

#include <orthant/core/base/error.hpp>

namespace orthant::model {

Parameter& ParameterStore::add(UnitId unit, shard::Region region) {
  invariant(find(unit, region.offset) == nullptr,
            "a region has one parameter: two would each overwrite the other's gradient");
  return parameters_.emplace_back(Parameter{.unit = unit, .region = std::move(region), .weight = {}, .grad = {}});
}

Parameter* ParameterStore::find(UnitId unit, std::int64_t offset) {
  for (Parameter& parameter : parameters_) {
    if (parameter.unit == unit && parameter.region.offset == offset) return &parameter;
  }
  return nullptr;
}

void ParameterStore::bind(UnitId unit, const at::Tensor& weights, const at::Tensor& grads) {
  for (Parameter& parameter : parameters_) {
    if (parameter.unit != unit) continue;
    const auto& [offset, shape] = parameter.region;
    const std::int64_t count = shard::numel(shape);
    parameter.weight = weights.narrow(0, offset, count).view(shape);
    if (grads.defined()) parameter.grad = grads.narrow(0, offset, count).view(shape);
  }
}

void ParameterStore::overwrite_gradients(UnitId unit) {
  for (Parameter& parameter : parameters_) {
    if (parameter.unit == unit) parameter.overwrite = true;
  }
}

void ParameterStore::set_trains(UnitId unit, bool trains) {
  for (Parameter& parameter : parameters_) {
    if (parameter.unit == unit) parameter.trains = trains;
  }
}

void ParameterStore::zero_unwritten(UnitId unit) {
  for (Parameter& parameter : parameters_) {
    if (parameter.unit == unit && parameter.overwrite) parameter.grad.zero_();
  }
}

}  // namespace orthant::model
