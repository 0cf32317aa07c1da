// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/declare.hpp>

#include <orthant/core/base/error.hpp>

namespace orthant::model {

Parameter& declare(Parameters parameters, UnitId unit, const std::vector<shard::ParameterTable::Part>& parts) {
  for (int index : parameters.table.unit(unit).parameters) {
    const auto& known = parameters.table.parameters()[index];
    if (known.name != parts.front().name) continue;
    Parameter* parameter = parameters.store.find(unit, known.offset);
    invariant(parameter != nullptr, "a parameter is in the table and not in the store");
    return *parameter;
  }
  return parameters.store.add(unit, parameters.table.add_region(unit, parts));
}

}  // namespace orthant::model
