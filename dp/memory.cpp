// SPDX-License-Identifier: Apache-2.0
#include <orthant/dp/memory.hpp>

namespace orthant::dp {

memory::StateBytes state_bytes(const shard::ParameterTable& table, const Options& options) {
  const memory::ElementBytes element(options.precision, options.moments);
  memory::StateBytes bytes;
  for (const shard::FlatUnit& unit : table.units()) {
    const std::int64_t count = unit.padded_numel(1);
    bytes.weights += count * element.weight;
    if (!unit.trains()) continue;
    bytes.gradients += count * element.wide;
    bytes.optimizer += count * (element.master + 2 * element.moment);
  }
  return bytes;
}

}  // namespace orthant::dp
