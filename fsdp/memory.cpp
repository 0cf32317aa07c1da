// SPDX-License-Identifier: Apache-2.0
#include <orthant/fsdp/memory.hpp>

#include <algorithm>

#include <orthant/fsdp/buffers.hpp>

namespace orthant::fsdp {
namespace {

using train::Residency;

std::int64_t bytes_of(DType type) { return static_cast<std::int64_t>(size_of(type)); }

}  // namespace

memory::StateBytes state_bytes(const shard::ParameterTable& table, const Options& options, int degree) {
  const bool narrow = options.precision == DType::bf16;
  const std::int64_t weight = bytes_of(options.precision), wide = narrow ? bytes_of(DType::f32) : weight;
  const bool narrows_wire = options.wire == DType::bf16 && options.precision != DType::f64;
  const bool grads_in_place = options.keeps_weights && options.residency.gradients == Residency::chunk && !narrows_wire;
  const std::int64_t moment = options.moments == DType::bf16 ? bytes_of(DType::bf16) : wide;

  memory::StateBytes bytes;
  // Where a rank's slice is a part of the whole, the whole is what it holds, and not a buffer beside it.
  auto& whole_weights = options.keeps_weights ? bytes.weights : bytes.buffers;
  auto& whole_gradients = grads_in_place ? bytes.gradients : bytes.buffers;
  const auto trains = [&](UnitId id) { return table.unit(id).trains(); };
  for (const auto& plan : plan_buffers(table, options.residency.weights, options.alternating_buffers, degree))
    whole_weights += plan.numel * weight;
  for (const auto& plan : plan_buffers(table, options.residency.gradients, options.alternating_buffers, degree)) {
    if (std::ranges::any_of(plan.units, trains)) whole_gradients += plan.numel * wide;
  }
  for (const shard::FlatUnit& unit : table.units()) {
    const std::int64_t count = unit.shard_numel(degree);
    if (!options.keeps_weights) bytes.weights += count * weight;
    if (!unit.trains()) continue;
    if (!grads_in_place) bytes.gradients += count * wide;
    bytes.optimizer += (narrow ? count * wide : 0) + 2 * count * moment;
  }
  return bytes;
}

}  // namespace orthant::fsdp
