// SPDX-License-Identifier: Apache-2.0
#include <orthant/fsdp/buffers.hpp>

#include <algorithm>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>

namespace orthant::fsdp {
std::vector<BufferPlan> plan_buffers(const shard::ParameterTable& table, train::Residency residency, int alternating,
                                     int degree) {
  invariant(alternating >= 1, "fsdp: at least one alternating buffer");
  std::vector<BufferPlan> own, shared;
  int blocks = 0;
  for (const shard::FlatUnit& unit : table.units()) {
    const std::int64_t numel = unit.padded_numel(degree);
    if (residency == train::Residency::chunk || unit.kind != shard::UnitKind::block) {
      own.push_back({unit.name, {unit.id}, numel});
      continue;
    }
    const int index = blocks++ % alternating;
    if (index == static_cast<int>(shared.size())) shared.push_back({fmt::format("blocks {}", index), {}});
    shared[index].units.push_back(unit.id);
    shared[index].numel = std::max(shared[index].numel, numel);
  }
  own.insert(own.end(), shared.begin(), shared.end());
  return own;
}

std::vector<shard::Range> gaps(const shard::FlatUnit& unit, std::int64_t padded_numel) {
  std::vector<shard::Range> result;
  std::int64_t end = 0;
  const auto add_up_to = [&](std::int64_t begin) {
    if (begin > end) result.push_back({end, begin});
  };
  for (const shard::Region& region : unit.regions) {
    add_up_to(region.offset);
    end = region.offset + shard::numel(region.shape);
  }
  add_up_to(padded_numel);
  return result;
}

}  // namespace orthant::fsdp
