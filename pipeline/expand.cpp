// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/expand.hpp>

#include <algorithm>
#include <map>

#include <orthant/core/base/error.hpp>

namespace orthant::pipeline {
namespace {

using train::LayerUnits;
using train::Residency;
using train::StageLayout;

constexpr std::size_t kSharedBuffers = 2;

/// Computations layer by layer; everything else as it stands.
std::vector<LayerTask> split_into_layers(std::span<const Op> ops, const StageLayout& layout) {
  std::vector<LayerTask> tasks;
  const std::size_t layers = layout.layers.size();
  for (const Op& op : ops) {
    if (!is_compute(op.kind)) {
      tasks.push_back({.kind = op.kind, .stage = op.stage, .microbatch = op.microbatch});
      continue;
    }
    for (std::size_t i = 0; i < layers; ++i) {
      const LayerUnits& units = layout.layers[op.kind == OpKind::forward ? i : layers - 1 - i];
      tasks.push_back(
          {op.kind, op.stage, op.microbatch, units.layer, units.main, units.norms, i == 0, i + 1 == layers});
    }
  }
  return tasks;
}

/// Which units lie in which weight buffer.
using Buffers = std::vector<std::vector<UnitId>>;

Buffers assign_buffers(const StageLayout& layout, Residency residency) {
  Buffers buffers(kSharedBuffers);
  std::size_t alternating = 0;
  const auto add_own = [&](UnitId unit) {
    const auto holds = [&](const auto& units) { return std::ranges::find(units, unit) != units.end(); };
    if (unit.value >= 0 && std::ranges::none_of(buffers, holds)) buffers.push_back({unit});
  };
  for (const LayerUnits& units : layout.layers) {
    if (units.alternating && residency == Residency::layer) {
      buffers[alternating++ % kSharedBuffers].push_back(units.main);
    } else {
      add_own(units.main);
    }
    add_own(units.norms);
  }
  return buffers;
}

/// What is to be inserted: before the first task, and after each.
struct Insertions {
  explicit Insertions(std::size_t tasks) : after(tasks) {}
  std::vector<std::pair<std::size_t, UnitId>> first_gathers;  ///< with the position of the first reader
  std::vector<std::vector<std::pair<OpKind, UnitId>>> after;
};

/// A buffer's readers in order: when the unit changes, the old one's last reader frees the buffer for the new one's
/// gather.
void place_gathers(std::span<const LayerTask> tasks, std::span<const UnitId> units, Insertions& insert) {
  UnitId held;
  std::size_t last_reader = 0;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (!reads_weights(tasks[i].kind)) continue;
    for (const UnitId unit : {tasks[i].unit, tasks[i].norms}) {
      if (std::ranges::find(units, unit) == units.end()) continue;
      if (held.value < 0) {
        insert.first_gathers.emplace_back(i, unit);
      } else if (held != unit) {
        insert.after[last_reader].emplace_back(OpKind::reshard, held);
        insert.after[last_reader].emplace_back(OpKind::unshard, unit);
      }
      held = unit;
      last_reader = i;
    }
  }
  if (held.value >= 0) insert.after[last_reader].emplace_back(OpKind::reshard, held);
}

void place_reductions(std::span<const LayerTask> tasks, const StageLayout& layout, Residency residency,
                      Insertions& insert) {
  std::map<UnitId, std::size_t> last_contribution;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (!makes_weight_gradient(tasks[i].kind)) continue;
    const auto units = std::ranges::find(layout.layers, tasks[i].layer, &LayerUnits::layer);
    if (units->alternating && residency == Residency::layer) {
      insert.after[i].emplace_back(OpKind::reduce, units->main);
    } else {
      last_contribution[units->main] = i;
    }
  }
  for (const auto& [unit, i] : last_contribution) insert.after[i].emplace_back(OpKind::reduce, unit);
}

}  // namespace

std::vector<LayerTask> expand(std::span<const Op> ops, const StageLayout& layout, Residency residency) {
  invariant(!layout.layers.empty(), "expand: a stage without layers");
  const std::vector<LayerTask> tasks = split_into_layers(ops, layout);
  Insertions insert(tasks.size());
  for (const auto& units : assign_buffers(layout, residency)) place_gathers(tasks, units, insert);
  place_reductions(tasks, layout, residency, insert);

  std::vector<LayerTask> result;
  const auto add = [&](OpKind kind, UnitId unit) {
    result.push_back({.kind = kind, .stage = layout.stage, .unit = unit});
  };
  std::ranges::sort(insert.first_gathers);
  for (const auto& [position, unit] : insert.first_gathers) add(OpKind::unshard, unit);
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    result.push_back(tasks[i]);
    for (const auto& [kind, unit] : insert.after[i]) add(kind, unit);
  }
  return result;
}

}  // namespace orthant::pipeline
