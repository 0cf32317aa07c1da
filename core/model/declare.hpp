// SPDX-License-Identifier: Apache-2.0
// Declares a layer's matrices: in the table of logical parameters, and as a Parameter for the layer to use.
#pragma once

#include <orthant/core/model/parameter.hpp>

namespace orthant::model {

struct Parameters {
  shard::ParameterTable& table;
  ParameterStore& store;
};

/// A region of `unit` that holds `parts` one under the other. Asked for again (a tied head on the embedding's rank),
/// returns the one that is there, so that both uses add into one gradient.
Parameter& declare(Parameters parameters, UnitId unit, const std::vector<shard::ParameterTable::Part>& parts);

}  // namespace orthant::model
