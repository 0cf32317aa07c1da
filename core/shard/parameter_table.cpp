// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/shard/parameter_table.hpp>

#include <algorithm>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>

namespace orthant::shard {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

std::int64_t FlatUnit::padded_numel(int shard_degree) const { return round_up(numel, kShardAlignment * shard_degree); }

void ParameterTable::add_unit(FlatUnit unit) {
  if (has(unit.id)) throw InternalError(fmt::format("unit {} ('{}') is declared twice", unit.id.value, unit.name));
  invariant(unit.numel == 0 && unit.regions.empty() && unit.parameters.empty(), "a unit is declared empty");
  units_.push_back(std::move(unit));
}

Region ParameterTable::add_region(UnitId id, const std::vector<Part>& parts) {
  invariant(!parts.empty(), "a region without parts");
  FlatUnit& unit = mutable_unit(id);
  Region region{.offset = round_up(unit.numel, kRegionAlignment), .shape = parts.front().placement.local_shape()};
  region.shape.front() = 0;
  std::int64_t offset = region.offset;
  for (const Part& part : parts) {
    const Shape local = part.placement.local_shape();
    if (local.size() != region.shape.size() || (local.size() == 2 && local[1] != region.shape[1]) || local.size() > 2) {
      throw ShapeError(
          fmt::format("unit '{}': '{}' does not fit under '{}': both must be 1-D, or 2-D with equal columns", unit.name,
                      part.name, parts.front().name));
    }
    region.shape.front() += local.front();
    unit.parameters.push_back(static_cast<int>(parameters_.size()));
    parameters_.push_back({.name = part.name,
                           .placement = part.placement,
                           .unit = id,
                           .offset = offset,
                           .init = part.init,
                           .partial = part.partial});
    offset += numel(local);
  }
  unit.numel = offset;
  unit.regions.push_back(region);
  return region;
}

bool ParameterTable::has(UnitId id) const { return std::ranges::find(units_, id, &FlatUnit::id) != units_.end(); }

const FlatUnit& ParameterTable::unit(UnitId id) const {
  const auto it = std::ranges::find(units_, id, &FlatUnit::id);
  if (it == units_.end()) throw InternalError(fmt::format("unit {} is not on this rank", id.value));
  return *it;
}

FlatUnit& ParameterTable::mutable_unit(UnitId id) { return const_cast<FlatUnit&>(unit(id)); }

}  // namespace orthant::shard
