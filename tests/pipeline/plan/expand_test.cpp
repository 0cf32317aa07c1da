// SPDX-License-Identifier: Apache-2.0
// expand() against a replay of its buffers: what is read is there, what is gathered was missing, what is contributed is
// reduced; its gather counts against those of reference/pipelines.md, section 6.
#include <orthant/pipeline/plan/expand.hpp>

#include <set>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/tests/pipeline/plan/stage_layouts.hpp>

namespace orthant::pipeline {
namespace {

using tests::kPolicies;
using tests::LayoutSpec;
using tests::lowered;
using tests::make_layouts;
using tests::one_stage;
using tests::ops_of_one_rank;
using tests::RandomCase;
using tests::text_of;
using train::LayerUnits;
using train::Residency;
using train::StageLayout;

int count(const std::vector<LayerTask>& tasks, OpKind kind, UnitId unit) {
  return static_cast<int>(
      std::ranges::count_if(tasks, [&](const LayerTask& t) { return t.kind == kind && t.unit == unit; }));
}

bool is_lifecycle(const LayerTask& task) {
  return task.kind == OpKind::unshard || task.kind == OpKind::reshard || task.kind == OpKind::reduce;
}

/// Without a window.
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

/// The stages of each operation that reads weights, or of the pair that it belongs to, with those of the next ones that
/// there is room for.
std::vector<std::set<StageId>> windows_of(const std::vector<Op>& ops, int window) {
  std::vector<std::vector<StageId>> steps;
  bool joined = false;
  for (const Op& op : ops) {
    if (!reads_weights(op.kind)) continue;
    if (!joined) steps.emplace_back();
    steps.back().push_back(op.stage);
    joined = op.joins_next;
  }
  std::vector<std::set<StageId>> result;
  for (std::size_t step = 0; step < steps.size(); ++step) {
    std::set<StageId> stages(steps[step].begin(), steps[step].end());
    for (std::size_t next = step + 1; next < steps.size(); ++next) {
      for (const StageId stage : steps[next]) {
        if (static_cast<int>(stages.size()) < window) stages.insert(stage);
      }
    }
    result.push_back(stages);
  }
  return result;
}

/// When an operation that reads weights begins, exactly the units of the window's stages are gathered.
void check_window(const std::vector<LayerTask>& tasks, const std::vector<Op>& ops,
                  const std::vector<StageLayout>& layouts, int window) {
  const std::vector<std::set<StageId>> windows = windows_of(ops, window);
  std::set<UnitId> held;
  std::size_t step = 0;
  bool in_pair = false, may_gather = true;
  for (const LayerTask& task : tasks) {
    if (task.kind == OpKind::unshard) {
      EXPECT_TRUE(held.insert(task.unit).second) << task.unit.value << " was still there";
      EXPECT_TRUE(may_gather) << "late gather";
    } else if (task.kind == OpKind::reshard) {
      EXPECT_EQ(held.erase(task.unit), 1U);
    } else if (task.kind != OpKind::reduce) {
      may_gather = reads_weights(task.kind);
      if (!may_gather) continue;
      if (task.opens && !in_pair) {
        std::set<UnitId> wanted;
        for (const StageLayout& layout : layouts) {
          for (const LayerUnits& units : layout.layers) {
            if (windows.at(step).contains(layout.stage)) wanted.insert({units.main, units.norms});
          }
        }
        wanted.erase(UnitId{-1});
        EXPECT_EQ(held, wanted) << "before " << to_text(Op{task.kind, task.stage, task.microbatch});
        ++step;
      }
      if (task.closes) in_pair = task.joins_next;
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

/// Without gathers and reductions: the operations, each as its layers in order, with its ends marked.
void check_layers(const std::vector<LayerTask>& tasks, const std::vector<Op>& ops,
                  const std::vector<StageLayout>& layouts) {
  std::vector<LayerTask> rest = tasks, expected;
  std::erase_if(rest, is_lifecycle);
  for (const Op& op : ops) {
    if (!is_compute(op.kind)) {
      expected.push_back({.kind = op.kind, .stage = op.stage, .microbatch = op.microbatch});
      continue;
    }
    std::vector<LayerUnits> layers = std::ranges::find(layouts, op.stage, &StageLayout::stage)->layers;
    if (op.kind != OpKind::forward) std::ranges::reverse(layers);
    for (const LayerUnits& l : layers) {
      expected.push_back({.kind = op.kind,
                          .stage = op.stage,
                          .microbatch = op.microbatch,
                          .layer = l.layer,
                          .unit = l.main,
                          .norms = l.norms,
                          .opens = l.layer == layers.front().layer,
                          .closes = l.layer == layers.back().layer,
                          .joins_next = op.joins_next});
    }
  }
  EXPECT_EQ(rest, expected);
}

/// Own units: one reduction a step, and without a window one gather. Shared ones: a reduction for each micro-batch.
void check_counts(const std::vector<LayerTask>& tasks, const std::vector<StageLayout>& layouts,
                  const ResidencyPolicy& policy, const Schedule& schedule) {
  for (const StageLayout& layout : layouts) {
    const auto [first, end] = schedule.microbatches_of(layout.stage);
    for (const LayerUnits& units : layout.layers) {
      const bool shares_weights = units.alternating && policy.residency.weights == Residency::layer;
      if (!shares_weights && policy.window == 0) {
        EXPECT_EQ(count(tasks, OpKind::unshard, units.main), 1);
      }
      const bool shared = units.alternating && policy.residency.gradients == Residency::layer;
      EXPECT_EQ(count(tasks, OpKind::reduce, units.main), !trains(schedule) ? 0 : shared ? end - first : 1);
      EXPECT_EQ(count(tasks, OpKind::reduce, units.norms), 0) << "belongs to the tail";
    }
  }
}

TEST(Expand, KeepsEveryBufferRightForRandomLayoutsAndSchedules) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 600; ++trial) {
    const RandomCase c(random);
    for (const ResidencyPolicy& policy : kPolicies) {
      const std::vector<LayerTask> tasks = expand(c.ops, c.layouts, policy);
      SCOPED_TRACE(fmt::format("{} window {}: {}", c.text, policy.window, text_of(tasks)));
      const auto buffers = tests::buffers_of(c.layouts, policy.residency.weights);
      check_layers(tasks, c.ops, c.layouts);
      if (policy.window == 0) {
        check_weights(tasks, buffers);
      } else {
        check_window(tasks, c.ops, c.layouts, policy.window);
      }
      check_gradients(tasks, tests::buffers_of(c.layouts, policy.residency.gradients));
      check_counts(tasks, c.layouts, policy, c.schedule);
      EXPECT_EQ(check_layer_tasks(tasks, c.layouts, policy), std::vector<std::string>{});
      if (HasFailure()) return;
    }
  }
}

TEST(Expand, ChunkGathersAtTheStartAndReducesAfterTheLastContribution) {
  const auto layouts = one_stage({.blocks = 1, .embedding = true, .head = true, .tied = true});
  EXPECT_EQ(text_of(expand(ops_of_one_rank("gpipe", 2), layouts, {})),
            "UNSHARD(0) UNSHARD(100) UNSHARD(101) F0.0 F0.101 F0.1 F1.0 F1.101 F1.1 "
            "B0.1 B0.101 B0.0 B1.1 B1.101 RESHARD(100) RESHARD(101) REDUCE(101) B1.0 RESHARD(0) REDUCE(0) "
            "NORM_UNITS TIE NORM STEP ");
}

TEST(Expand, LayerGathersAsSoonAsABufferIsFreeAndNotAtTheTurn) {
  EXPECT_EQ(
      text_of(expand(ops_of_one_rank("zb_h1", 1), one_stage({}), {.residency = {Residency::layer, Residency::layer}})),
      "UNSHARD(100) UNSHARD(101) UNSHARD(102) F0.101 RESHARD(101) UNSHARD(103) F0.102 RESHARD(102) UNSHARD(104) "
      "F0.103 F0.104 I0.104 RESHARD(104) UNSHARD(102) I0.103 RESHARD(103) UNSHARD(101) I0.102 RESHARD(102) "
      "I0.101 RESHARD(100) RESHARD(101) W0.104 REDUCE(104) W0.103 REDUCE(103) W0.102 REDUCE(102) W0.101 "
      "REDUCE(101) NORM_UNITS TIE NORM STEP ");
}

TEST(Expand, WeightGradientTasksReadNoWeights) {
  // W0 after I0 would cost no gather; were it a reader, layers 104 and 103 would be gathered once more.
  const auto tasks =
      expand(ops_of_one_rank("zb_h1", 2), one_stage({}), {.residency = {Residency::layer, Residency::layer}});
  int gathers = 0;
  for (int unit = 101; unit <= 104; ++unit) gathers += count(tasks, OpKind::unshard, UnitId{unit});
  EXPECT_EQ(gathers, 10);  // F0 I0 F1 I1 over four blocks: 16 readers, less two shared at each of three turns
}

/// Rank 0 of four, eight micro-batches.
std::vector<LayerTask> expand_rank_0(const ScheduleRequest& request, const LayoutSpec& spec,
                                     const ResidencyPolicy& policy) {
  const Schedule schedule = lowered(request);
  return expand(schedule.ranks[0], make_layouts(schedule.stages_of(0), spec), policy);
}

struct GatherCounts {
  const char* name;
  int chunks;
  int windows[3];  ///< of 1, 2 and 3
  int each;        ///< for every use
  int once;
};
// pipelines.md, section 6: the first of four ranks, eight micro-batches, a stage as one unit.
constexpr GatherCounts kCounts[] = {
    {"1f1b", 1, {1, 1, 1}, 16, 1},           {"interleaved", 2, {11, 2, 2}, 32, 2},
    {"interleaved", 4, {31, 12, 11}, 64, 4}, {"zb_v", 2, {11, 2, 2}, 32, 2},
    {"dualpipe_v", 2, {7, 2, 2}, 32, 2},     {"breadth_first", 2, {3, 2, 2}, 32, 2},
    {"breadth_first", 4, {7, 6, 5}, 64, 4},
};

TEST(Expand, GathersAsOftenAsTheTableSays) {
  int known = 0;
  for (const GatherCounts& row : kCounts) {
    const ScheduleRequest request{.name = row.name, .ranks = 4, .microbatches = 8, .chunks = row.chunks};
    if (!broken_rule(request).empty()) continue;
    SCOPED_TRACE(text_of(request));
    ++known;
    for (int window = 1; window <= 3; ++window) {
      const auto tasks = expand_rank_0(request, {.blocks = 1, .norms = false}, {.window = window});
      EXPECT_EQ(count_gathers(tasks), row.windows[window - 1]) << "window " << window;
    }
    EXPECT_EQ(count_gathers(expand_rank_0(request, {.blocks = 1, .norms = false}, {})), row.once);
    // For every use, except that a buffer still holds its unit at a turn: not the units amid a stage.
    const auto tasks =
        expand_rank_0(request, {.blocks = 6, .norms = false}, {.residency = {Residency::layer, Residency::layer}});
    for (const int block : {3, 4}) {
      int gathers = 0;
      for (int stage = 1; stage <= row.chunks; ++stage)
        gathers += count(tasks, OpKind::unshard, UnitId{100 * stage + block});
      EXPECT_EQ(gathers, row.each) << "block " << block;
    }
  }
  EXPECT_GE(known, 6);
}

/// Down and back again on one rank.
std::vector<Op> v_ops(int microbatches) {
  std::vector<Op> ops;
  for (MicrobatchId m{0}; m.value < microbatches; ++m.value) {
    ops.push_back({OpKind::forward, StageId{0}, m});
    ops.push_back({OpKind::forward, StageId{1}, m});
    ops.push_back({OpKind::backward, StageId{1}, m});
    ops.push_back({OpKind::backward, StageId{0}, m});
  }
  return ops;
}

TEST(Expand, KeepsATiedUnitWhileEitherOfItsStagesIsInTheWindow) {
  const LayoutSpec spec{.blocks = 1, .norms = false, .embedding = true, .head = true, .tied = true};
  EXPECT_EQ(text_of(expand(v_ops(1), make_layouts({StageId{0}, StageId{1}}, spec), {.window = 1})),
            "UNSHARD(0) UNSHARD(101) F0.0 F0.101 RESHARD(101) UNSHARD(201) F0.201 F0.1 B0.1 B0.201 RESHARD(201) "
            "UNSHARD(101) REDUCE(201) B0.101 RESHARD(101) REDUCE(101) B0.0 RESHARD(0) REDUCE(0) ");
}

TEST(Expand, GathersBothStagesOfAPairAtOnce) {
  std::vector<Op> ops = v_ops(2);
  // F0 F1 (F0' & B1) F1' B1' B0 B0' of stages 0 and 1.
  ops = {ops[0], ops[1], ops[4], ops[2], ops[5], ops[6], ops[3], ops[7]};
  ops[2].joins_next = true;
  const auto tasks = expand(ops, make_layouts({StageId{0}, StageId{1}}, {.blocks = 1, .norms = false}), {.window = 1});
  EXPECT_EQ(text_of(tasks),
            "UNSHARD(101) F0.101 RESHARD(101) UNSHARD(201) F0.201 UNSHARD(101) F1.101 RESHARD(101) B0.201 F1.201 "
            "B1.201 RESHARD(201) UNSHARD(101) REDUCE(201) B0.101 B1.101 RESHARD(101) REDUCE(101) ");
  EXPECT_TRUE(std::ranges::all_of(tasks, [](const LayerTask& task) {
    return task.joins_next == (task.kind == OpKind::forward && task.stage.value == 0 && task.microbatch.value == 1);
  }));
}

TEST(Expand, RefusesAnOperationOfAnotherRanksStage) {
  const std::vector<Op> ops = {{OpKind::forward, StageId{1}, MicrobatchId{0}}};
  EXPECT_THROW(expand(ops, one_stage({}), {}), InternalError);
}

}  // namespace
}  // namespace orthant::pipeline
