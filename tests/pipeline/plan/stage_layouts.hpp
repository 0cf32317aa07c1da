// SPDX-License-Identifier: Apache-2.0
// Stages made of layers and units, and random cases of what expand() is given.
#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <orthant/pipeline/plan/expand.hpp>
#include <orthant/pipeline/plan/lower.hpp>
#include <orthant/tests/pipeline/plan/every_schedule.hpp>

namespace orthant::pipeline::tests {

using train::LayerUnits;
using train::Residency;
using train::StageLayout;

constexpr UnitId kEmbedding{0};
constexpr UnitId kHead{1};

/// What the stages of a rank are made of.
struct LayoutSpec {
  int blocks = 4;  ///< of each stage
  bool norms = true;
  bool embedding = false;  ///< in the first of the rank's stages
  bool head = false;       ///< in the last
  bool tied = false;       ///< the head uses the embedding's unit
};

/// Stage number i of the rank has blocks with units and layers 100 (i + 1) + 1 and so on, and norm unit 100 (i + 1).
inline std::vector<StageLayout> make_layouts(const std::vector<StageId>& stages, const LayoutSpec& spec) {
  std::vector<StageLayout> layouts;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    StageLayout layout{.stage = stages[i], .layers = {}};
    const int base = 100 * static_cast<int>(i + 1);
    const UnitId norms{spec.norms ? base : -1};
    if (spec.embedding && i == 0) layout.layers.push_back({.layer = LayerId{0}, .main = kEmbedding});
    for (int block = 1; block <= spec.blocks; ++block)
      layout.layers.push_back(
          {.layer = LayerId{base + block}, .main = UnitId{base + block}, .norms = norms, .alternating = true});
    if (spec.head && i + 1 == stages.size())
      layout.layers.push_back({.layer = LayerId{1}, .main = spec.tied ? kEmbedding : kHead, .norms = norms});
    layouts.push_back(layout);
  }
  return layouts;
}

/// One stage, as on a rank of 1f1b.
inline std::vector<StageLayout> one_stage(const LayoutSpec& spec) { return make_layouts({StageId{0}}, spec); }

inline Schedule lowered(const ScheduleRequest& request) {
  const Schedule schedule = make_schedule(request);
  return lower(schedule, slots_for(schedule));
}

inline std::vector<Op> ops_of_one_rank(std::string name, int microbatches) {
  return lowered({.name = std::move(name), .microbatches = microbatches}).ranks[0];
}

inline std::string text_of(const std::vector<LayerTask>& tasks) {
  std::string text;
  for (const LayerTask& task : tasks) {
    if (is_compute(task.kind)) {
      text += fmt::format("{}{}.{} ", letters(task.kind), task.microbatch.value, task.layer.value);
    } else if (task.unit.value >= 0) {
      text += fmt::format("{}({}) ", letters(task.kind), task.unit.value);
    } else {
      text += fmt::format("{} ", letters(task.kind));
    }
  }
  return text;
}

/// The buffer a unit lives in: one of two for alternating units under Residency::layer, else its own.
inline std::map<UnitId, int> buffers_of(const std::vector<StageLayout>& layouts, Residency residency) {
  std::map<UnitId, int> buffer;
  int alternating = 0, own = 2;
  for (const StageLayout& layout : layouts) {
    for (const LayerUnits& units : layout.layers) {
      if (units.alternating && residency == Residency::layer) {
        buffer[units.main] = alternating++ % 2;
      } else {
        buffer.try_emplace(units.main, own++);
      }
      buffer.try_emplace(units.norms, own++);
    }
  }
  return buffer;
}

class RandomCase {
 public:
  explicit RandomCase(std::mt19937& random) {
    const auto draw = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
    ScheduleRequest request;
    do {
      request = {.name = std::string(schedule_names()[random() % schedule_names().size()]),
                 .ranks = draw(1, 4),
                 .microbatches = draw(1, 8),
                 .chunks = 1 << draw(0, 2)};
    } while (!broken_rule(request).empty());
    Schedule compute = make_schedule(request);
    if (draw(0, 5) == 0) compute = forward_only(compute);
    schedule = lower(compute, slots_for(compute));
    const int rank = draw(0, request.ranks - 1);
    ops = schedule.ranks[static_cast<std::size_t>(rank)];
    LayoutSpec spec{.blocks = draw(0, 5),
                    .norms = draw(0, 3) > 0,
                    .embedding = draw(0, 1) == 1,
                    .head = draw(0, 1) == 1,
                    .tied = draw(0, 1) == 1};
    if (spec.blocks == 0 && request.chunks > 1) spec.blocks = 1;
    if (spec.blocks == 0) spec.head = true;
    if (!spec.embedding || !spec.head) spec.tied = false;
    layouts = make_layouts(schedule.stages_of(rank), spec);
    text = fmt::format("{} rank {}", text_of(request), rank);
  }

  Schedule schedule;
  std::vector<Op> ops;
  std::vector<StageLayout> layouts;
  std::string text;
};

inline const std::vector<ResidencyPolicy> kPolicies = {
    {.window = 0},
    {.window = 1},
    {.window = 2},
    {.window = 3},
    {.residency = {Residency::layer, Residency::layer}},
    {.residency = {Residency::layer, Residency::chunk}},
    {.residency = {Residency::chunk, Residency::layer}, .window = 1}};

}  // namespace orthant::pipeline::tests
