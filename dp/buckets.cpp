// SPDX-License-Identifier: Apache-2.0
#include <orthant/dp/buckets.hpp>

#include <algorithm>

namespace orthant::dp {

std::vector<Bucket> make_buckets(const shard::ParameterTable& table, std::int64_t capacity) {
  std::vector<const shard::FlatUnit*> order;
  for (const shard::FlatUnit& unit : table.units()) {
    if (unit.trains()) order.insert(order.begin(), &unit);
  }
  std::ranges::stable_partition(order,
                                [](const shard::FlatUnit* unit) { return unit->kind != shard::UnitKind::norms; });

  std::vector<Bucket> buckets;
  std::int64_t end = 0;
  for (const shard::FlatUnit* unit : order) {
    const shard::Range elements{end, end + unit->padded_numel(1)};
    end = elements.end;
    if (buckets.empty() || elements.end - buckets.back().elements().begin > capacity) buckets.emplace_back();
    buckets.back().members.push_back({unit->id, elements});
  }
  return buckets;
}

}  // namespace orthant::dp
