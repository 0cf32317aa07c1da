// SPDX-License-Identifier: Apache-2.0
// What of a slice of a flat unit is this rank's to count, and what of its gradient is a sum with other ranks still to
// be taken. Elements that belong to no parameter (alignment) are zero and go with their neighbours.
#pragma once

#include <vector>

#include <orthant/core/shard/parameter_table.hpp>

namespace orthant::shard {

/// Where a parameter lies in its unit.
Range elements_of(const LogicalParameter& parameter);
/// Empty (begin >= end) where they have nothing in common.
Range common(Range a, Range b);

/// The slice without the parameters that another rank owns. Elements of the unit, ascending.
std::vector<Range> owned_ranges(const ParameterTable& table, UnitId unit, Range slice);

struct PartialRange {
  Range range;     ///< elements of the unit
  int copies = 1;  ///< ranks whose gradients add up
};
/// Neighbours that the same number of ranks hold are one range. The same on all those ranks, if slices are.
std::vector<PartialRange> partial_ranges(const ParameterTable& table, UnitId unit, Range slice);

}  // namespace orthant::shard
