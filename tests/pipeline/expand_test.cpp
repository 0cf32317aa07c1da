// SPDX-License-Identifier: Apache-2.0
// expand() against a replay of its buffers: what is read is there, what is gathered was missing, what is contributed is
// reduced.
#include <orthant/pipeline/expand.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <orthant/pipeline/lower.hpp>

namespace orthant::pipeline {
namespace {

using train::LayerUnits;
using train::Residency;
using train::StageLayout;

constexpr UnitId kNorms{100};
constexpr UnitId kEmbedding{0};

/// `blocks` blocks with units 1 .. blocks; an embedding before and a head (tied to it, or unit 50) behind, where asked
/// for.
struct LayoutSpec {
  int blocks = 4;
  bool embedding = false;
  bool head = false;
  bool tied = false;
};

StageLayout make_layout(const LayoutSpec& spec) {
  StageLayout layout{.stage = StageId{0}, .layers = {}};
  if (spec.embedding) layout.layers.push_back({.layer = LayerId{0}, .main = kEmbedding});
  for (int i = 1; i <= spec.blocks; ++i) {
    layout.layers.push_back({.layer = LayerId{i}, .main = UnitId{i}, .norms = kNorms, .alternating = true});
  }
  const UnitId head = spec.tied ? kEmbedding : UnitId{50};
  if (spec.head) layout.layers.push_back({.layer = LayerId{spec.blocks + 1}, .main = head, .norms = kNorms});
  return layout;
}

std::string text_of(const std::vector<LayerTask>& tasks) {
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

int count(const std::vector<LayerTask>& tasks, OpKind kind, UnitId unit) {
  return static_cast<int>(
      std::ranges::count_if(tasks, [&](const LayerTask& t) { return t.kind == kind && t.unit == unit; }));
}

/// The buffer a unit lives in: one of two for alternating units under Residency::layer, else its own.
std::map<UnitId, int> buffers_of(const StageLayout& layout, Residency residency) {
  std::map<UnitId, int> buffer;
  int alternating = 0, own = 2;
  for (const LayerUnits& units : layout.layers) {
    if (units.alternating && residency == Residency::layer) {
      buffer[units.main] = alternating++ % 2;
    } else {
      buffer.try_emplace(units.main, own++);
    }
    buffer.try_emplace(units.norms, own++);
  }
  return buffer;
}

void check_weights(const std::vector<LayerTask>& tasks, const std::map<UnitId, int>& buffer_of) {
  std::map<int, UnitId> held, last_held;
  std::set<int> readable_since_head;  // buffers whose last reader has no other computation or message behind it
  bool at_head = true;
  for (const LayerTask& task : tasks) {
    if (task.kind == OpKind::unshard) {
      const int buffer = buffer_of.at(task.unit);
      EXPECT_FALSE(held.contains(buffer)) << "gather of " << task.unit.value << " over weights in use";
      EXPECT_TRUE(!last_held.contains(buffer) || last_held[buffer] != task.unit)
          << task.unit.value << " was still there";
      EXPECT_TRUE(last_held.contains(buffer) ? readable_since_head.contains(buffer) : at_head) << "late gather";
      held[buffer] = last_held[buffer] = task.unit;
    } else if (task.kind == OpKind::reshard) {
      const int buffer = buffer_of.at(task.unit);
      EXPECT_TRUE(held.contains(buffer) && held[buffer] == task.unit);
      held.erase(buffer);
    } else if (task.kind != OpKind::reduce) {
      at_head = false;
      readable_since_head.clear();
      if (!reads_weights(task.kind)) continue;
      for (const UnitId unit : {task.unit, task.norms}) {
        if (unit.value < 0) continue;
        const int buffer = buffer_of.at(unit);
        EXPECT_TRUE(held.contains(buffer) && held[buffer] == unit) << "unit " << unit.value << " is not there";
        readable_since_head.insert(buffer);
      }
    }
  }
  EXPECT_TRUE(held.empty());
}

void check_gradients(const std::vector<LayerTask>& tasks, const std::map<UnitId, int>& buffer_of) {
  std::map<int, UnitId> pending;
  UnitId last_contribution;
  for (const LayerTask& task : tasks) {
    if (makes_weight_gradient(task.kind)) {
      const int buffer = buffer_of.at(task.unit);
      EXPECT_TRUE(!pending.contains(buffer) || pending[buffer] == task.unit) << "overwrites an unreduced gradient";
      pending[buffer] = last_contribution = task.unit;
    } else if (task.kind == OpKind::reduce) {
      EXPECT_EQ(task.unit, last_contribution) << "late reduction";
      EXPECT_EQ(pending.erase(buffer_of.at(task.unit)), 1U);
    } else if (task.kind != OpKind::unshard && task.kind != OpKind::reshard) {
      last_contribution = UnitId{};
    }
  }
  EXPECT_TRUE(pending.empty());
}

void check_counts(const std::vector<LayerTask>& tasks, const StageLayout& layout, Residency residency,
                  const Schedule& schedule) {
  const bool trains = schedule.name != "forward_only";
  for (const LayerUnits& units : layout.layers) {
    const bool shared = units.alternating && residency == Residency::layer;
    if (!shared) {
      EXPECT_EQ(count(tasks, OpKind::unshard, units.main), 1);
    }
    EXPECT_EQ(count(tasks, OpKind::reduce, units.main), !trains ? 0 : shared ? schedule.microbatches : 1);
  }
  EXPECT_EQ(count(tasks, OpKind::reduce, kNorms), 0) << "belongs to the tail";
}

/// Without gathers and reductions: the operations, each as its layers in order, with its ends marked.
void check_layers(const std::vector<LayerTask>& tasks, const std::vector<Op>& ops, const StageLayout& layout) {
  std::vector<LayerTask> rest = tasks, expected;
  std::erase_if(rest, [](const LayerTask& t) {
    return t.kind == OpKind::unshard || t.kind == OpKind::reshard || t.kind == OpKind::reduce;
  });
  for (const Op& op : ops) {
    if (!is_compute(op.kind)) {
      expected.push_back({.kind = op.kind, .stage = op.stage, .microbatch = op.microbatch});
      continue;
    }
    std::vector<LayerUnits> layers = layout.layers;
    if (op.kind != OpKind::forward) std::ranges::reverse(layers);
    for (const LayerUnits& l : layers) {
      expected.push_back({op.kind, op.stage, op.microbatch, l.layer, l.main, l.norms, l.layer == layers.front().layer,
                          l.layer == layers.back().layer});
    }
  }
  EXPECT_EQ(rest, expected);
}

TEST(Expand, KeepsEveryBufferRightForRandomLayoutsAndSchedules) {
  std::mt19937 random(11);
  const auto draw_int = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  for (int trial = 0; trial < 1500; ++trial) {
    constexpr std::array kGenerators{gpipe, one_f_one_b, zb_h1, forward_only};
    const int p = draw_int(1, 5);
    const Schedule schedule =
        lower(kGenerators[static_cast<std::size_t>(trial) % kGenerators.size()](p, draw_int(1, 6)), 1);
    const auto& ops = schedule.ranks[static_cast<std::size_t>(draw_int(0, p - 1))];
    LayoutSpec spec{.blocks = draw_int(0, 6), .embedding = draw_int(0, 1) == 1, .head = draw_int(0, 1) == 1};
    spec.tied = spec.embedding && spec.head && draw_int(0, 1) == 1;
    if (spec.blocks == 0) spec.head = true;
    const StageLayout layout = make_layout(spec);
    for (const Residency residency : {Residency::chunk, Residency::layer}) {
      const std::vector<LayerTask> tasks = expand(ops, layout, residency);
      SCOPED_TRACE(text_of(tasks));
      const auto buffers = buffers_of(layout, residency);
      check_layers(tasks, ops, layout);
      check_weights(tasks, buffers);
      check_gradients(tasks, buffers);
      check_counts(tasks, layout, residency, schedule);
      if (HasFailure()) return;
    }
  }
}

TEST(Expand, ChunkGathersAtTheStartAndReducesAfterTheLastContribution) {
  const StageLayout layout = make_layout({.blocks = 1, .embedding = true, .head = true, .tied = true});
  EXPECT_EQ(text_of(expand(lower(gpipe(1, 2), 1).ranks[0], layout, Residency::chunk)),
            "UNSHARD(0) UNSHARD(1) UNSHARD(100) F0.0 F0.1 F0.2 F1.0 F1.1 F1.2 "
            "B0.2 B0.1 B0.0 B1.2 B1.1 RESHARD(1) RESHARD(100) REDUCE(1) B1.0 RESHARD(0) REDUCE(0) "
            "NORM_UNITS TIE NORM STEP ");
}

TEST(Expand, LayerGathersAsSoonAsABufferIsFreeAndNotAtTheTurn) {
  const StageLayout layout = make_layout({.blocks = 4});
  EXPECT_EQ(text_of(expand(lower(zb_h1(1, 1), 1).ranks[0], layout, Residency::layer)),
            "UNSHARD(1) UNSHARD(100) UNSHARD(2) F0.1 RESHARD(1) UNSHARD(3) F0.2 RESHARD(2) UNSHARD(4) F0.3 F0.4 "
            "I0.4 RESHARD(4) UNSHARD(2) I0.3 RESHARD(3) UNSHARD(1) I0.2 RESHARD(2) I0.1 RESHARD(1) RESHARD(100) "
            "W0.4 REDUCE(4) W0.3 REDUCE(3) W0.2 REDUCE(2) W0.1 REDUCE(1) NORM_UNITS TIE NORM STEP ");
}

TEST(Expand, WeightGradientTasksReadNoWeights) {
  const StageLayout layout = make_layout({.blocks = 4});
  // W0 after I0 would cost no gather; were it a reader, layers 4 and 3 would be gathered once more.
  const auto tasks = expand(lower(zb_h1(1, 2), 1).ranks[0], layout, Residency::layer);
  int gathers = 0;
  for (int unit = 1; unit <= 4; ++unit) gathers += count(tasks, OpKind::unshard, UnitId{unit});
  EXPECT_EQ(gathers, 10);  // F0 I0 F1 I1 over four blocks: 16 readers, less two shared at each of three turns
}

}  // namespace
}  // namespace orthant::pipeline
