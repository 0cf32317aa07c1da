// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/shard/slice_ranges.hpp>

#include <algorithm>
#include <utility>

namespace orthant::shard {

Range elements_of(const LogicalParameter& parameter) {
  return {parameter.offset, parameter.offset + numel(parameter.placement.local_shape())};
}

Range common(Range a, Range b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

std::vector<Range> owned_ranges(const ParameterTable& table, UnitId unit, Range slice) {
  std::vector<Range> owned;
  auto begin = slice.begin;
  const auto close = [&](std::int64_t end) {
    if (begin < end) owned.push_back({begin, end});
  };
  for (const int index : table.unit(unit).parameters) {  // in order of offset
    const auto& parameter = table.parameters()[static_cast<std::size_t>(index)];
    if (parameter.placement.is_owned()) continue;
    const auto [first, last] = elements_of(parameter);
    close(std::min(first, slice.end));
    begin = std::max(begin, last);
  }
  close(slice.end);
  return owned;
}

std::vector<PartialRange> partial_ranges(const ParameterTable& table, UnitId unit, Range slice) {
  std::vector<PartialRange> partial;
  int copies = 0;  // of the parameter before, 0 unless it was partial
  for (const int index : table.unit(unit).parameters) {
    const auto& parameter = table.parameters()[static_cast<std::size_t>(index)];
    const int before = std::exchange(copies, parameter.partial ? parameter.placement.copies : 0);
    if (copies == 0) continue;
    const auto [first, last] = elements_of(parameter);
    if (copies == before) {
      partial.back().range.end = last;
    } else {
      partial.push_back({{first, last}, copies});
    }
  }
  std::erase_if(partial, [&](PartialRange& found) {
    found.range = common(found.range, slice);
    return found.range.begin >= found.range.end;
  });
  return partial;
}

}  // namespace orthant::shard
