// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/plan/weight_buffers.hpp>

namespace orthant::pipeline {

std::map<UnitId, int> assign_buffers(std::span<const train::StageLayout> stages, train::Residency residency) {
  std::map<UnitId, int> buffer_of;
  int blocks = 0, own = 2;
  for (const train::StageLayout& stage : stages) {
    for (const train::LayerUnits& units : stage.layers) {
      const bool shared = units.alternating && residency == train::Residency::layer;
      if (buffer_of.try_emplace(units.main, shared ? blocks % 2 : own).second) ++(shared ? blocks : own);
      if (units.norms.value >= 0 && buffer_of.try_emplace(units.norms, own).second) ++own;
    }
  }
  return buffer_of;
}

}  // namespace orthant::pipeline
