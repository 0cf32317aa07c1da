// SPDX-License-Identifier: Apache-2.0
#include <orthant/dp/memory.hpp>

namespace orthant::dp {
namespace {

std::int64_t bytes_of(DType type) { return static_cast<std::int64_t>(size_of(type)); }

}  // namespace

memory::StateBytes state_bytes(const shard::ParameterTable& table, const Options& options) {
  const bool narrow = options.precision == DType::bf16;
  const std::int64_t weight = bytes_of(options.precision), wide = narrow ? bytes_of(DType::f32) : weight;
  const std::int64_t moment = options.moments == DType::bf16 ? bytes_of(DType::bf16) : wide;
  memory::StateBytes bytes;
  for (const shard::FlatUnit& unit : table.units()) {
    const std::int64_t count = unit.padded_numel(1);
    bytes.weights += count * weight;
    if (!unit.trains()) continue;
    bytes.gradients += count * wide;
    bytes.optimizer += (narrow ? count * wide : 0) + 2 * count * moment;
  }
  return bytes;
}

}  // namespace orthant::dp
