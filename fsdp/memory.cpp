// SPDX-License-Identifier: Apache-2.0
#include <orthant/fsdp/memory.hpp>

#include <algorithm>

#include <orthant/fsdp/buffers.hpp>

namespace orthant::fsdp {
memory::StateBytes state_bytes(const shard::ParameterTable& table, const Options& options, int degree) {
  const memory::ElementBytes element(options.precision, options.moments);
  memory::StateBytes bytes;
  // Where a rank's slice is a part of the whole, the whole is what it holds, and not a buffer beside it.
  auto& whole_weights = options.keeps_weights ? bytes.weights : bytes.buffers;
  auto& whole_gradients = options.gradients_in_place() ? bytes.gradients : bytes.buffers;
  const auto trains = [&](UnitId id) { return table.unit(id).trains(); };
  for (const auto& plan : plan_buffers(table, options.residency.weights, options.alternating_buffers, degree))
    whole_weights += plan.numel * element.weight;
  for (const auto& plan : plan_buffers(table, options.residency.gradients, options.alternating_buffers, degree)) {
    if (std::ranges::any_of(plan.units, trains)) whole_gradients += plan.numel * element.wide;
  }
  for (const shard::FlatUnit& unit : table.units()) {
    const std::int64_t count = unit.shard_numel(degree);
    if (!options.keeps_weights) bytes.weights += count * element.weight;
    if (!unit.trains()) continue;
    if (!options.gradients_in_place()) bytes.gradients += count * element.wide;
    bytes.optimizer += count * (element.master + 2 * element.moment);
  }
  return bytes;
}

}  // namespace orthant::fsdp
