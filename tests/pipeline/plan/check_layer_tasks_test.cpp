// SPDX-License-Identifier: Apache-2.0
// Layer tasks with a fault: each gather and each reduction taken out, or put too early, is found.
#include <gtest/gtest.h>

#include <orthant/pipeline/plan/expand.hpp>
#include <orthant/tests/pipeline/plan/stage_layouts.hpp>

namespace orthant::pipeline {
namespace {

using tests::kPolicies;
using tests::one_stage;
using tests::ops_of_one_rank;
using tests::RandomCase;
using tests::text_of;
using train::Residency;
using train::StageLayout;

/// The first problem after one task is taken out.
std::string problem_without(std::vector<LayerTask> tasks, std::size_t i, const std::vector<StageLayout>& layouts,
                            const ResidencyPolicy& policy) {
  tasks.erase(tasks.begin() + static_cast<std::ptrdiff_t>(i));
  const auto problems = check_layer_tasks(tasks, layouts, policy);
  return problems.empty() ? "" : problems.front();
}

TEST(CheckLayerTasks, MissesNoGatherAndNoReduction) {
  std::mt19937 random(5);
  int dropped = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const RandomCase c(random);
    for (const ResidencyPolicy& policy : kPolicies) {
      const std::vector<LayerTask> tasks = expand(c.ops, c.layouts, policy);
      for (std::size_t i = 0; i < tasks.size(); ++i) {
        if (tasks[i].kind != OpKind::unshard && tasks[i].kind != OpKind::reduce) continue;
        EXPECT_NE(problem_without(tasks, i, c.layouts, policy), "") << c.text << ": " << text_of(tasks) << i;
        ++dropped;
      }
    }
  }
  EXPECT_GT(dropped, 1000);
}

TEST(CheckLayerTasks, MissesNoGatherThatIsTooEarlyAndNoReductionBeforeItsContribution) {
  std::mt19937 random(6);
  int gathers = 0, reductions = 0;
  for (int trial = 0; trial < 100; ++trial) {
    const RandomCase c(random);
    for (const ResidencyPolicy& policy : kPolicies) {
      const auto buffers = tests::buffers_of(c.layouts, policy.residency.weights);
      const std::vector<LayerTask> tasks = expand(c.ops, c.layouts, policy);
      for (std::size_t i = 1; i < tasks.size(); ++i) {
        const bool reduces = tasks[i].kind == OpKind::reduce;
        if (tasks[i].kind != OpKind::unshard && !reduces) continue;
        // To before the last reader of the buffer, or the last contribution.
        std::size_t to = i;
        const auto holds_up = [&](const LayerTask& task) {
          if (reduces) return makes_weight_gradient(task.kind) && task.unit == tasks[i].unit;
          return reads_weights(task.kind) && buffers.at(task.unit) == buffers.at(tasks[i].unit);
        };
        while (to > 0 && !holds_up(tasks[to])) --to;
        if (!holds_up(tasks[to])) continue;
        std::vector<LayerTask> early = tasks;
        std::rotate(early.begin() + static_cast<std::ptrdiff_t>(to), early.begin() + static_cast<std::ptrdiff_t>(i),
                    early.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        EXPECT_NE(check_layer_tasks(early, c.layouts, policy), std::vector<std::string>{}) << text_of(early);
        ++(reduces ? reductions : gathers);
      }
    }
  }
  EXPECT_GT(gathers, 300);
  EXPECT_GT(reductions, 300);
}

TEST(CheckLayerTasks, NamesTheOffendingTask) {
  const auto layouts = one_stage({.blocks = 3, .norms = false});
  const ResidencyPolicy policy{.residency = {Residency::layer, Residency::layer}};
  const std::vector<LayerTask> tasks = expand(ops_of_one_rank("gpipe", 1), layouts, policy);
  ASSERT_EQ(text_of(tasks),
            "UNSHARD(101) UNSHARD(102) F0.101 RESHARD(101) UNSHARD(103) F0.102 F0.103 B0.103 RESHARD(103) UNSHARD(101) "
            "REDUCE(103) B0.102 RESHARD(102) REDUCE(102) B0.101 RESHARD(101) REDUCE(101) NORM_UNITS TIE NORM STEP ");
  EXPECT_EQ(problem_without(tasks, 1, layouts, policy), "F s0 m0 layer 102 reads unit 102, which is not gathered");
  EXPECT_EQ(problem_without(tasks, 10, layouts, policy),
            "unit 103 is not reduced after B s0 m0 layer 103, before B s0 m0 layer 101 takes the buffer");
  EXPECT_EQ(problem_without(tasks, 16, layouts, policy), "unit 101 is not reduced after B s0 m0 layer 101");
  EXPECT_EQ(problem_without(tasks, 14, layouts, policy),
            "REDUCE of unit 101, to which nothing was added since the last");
  auto early = tasks;
  std::swap(early[2], early[4]);
  EXPECT_EQ(check_layer_tasks(early, layouts, policy).front(),
            "UNSHARD of unit 103 before F s0 m0 layer 101 has read unit 101 in the same buffer");
  auto twice = tasks;
  twice.insert(twice.begin(), tasks[0]);
  EXPECT_EQ(check_layer_tasks(twice, layouts, policy).front(), "UNSHARD of unit 101, which is gathered");

  const auto chunk = expand(ops_of_one_rank("gpipe", 2), layouts, {});
  const auto reduce = std::ranges::find(chunk, OpKind::reduce, &LayerTask::kind) - chunk.begin();
  auto soon = chunk;
  std::rotate(soon.begin() + reduce - 4, soon.begin() + reduce, soon.begin() + reduce + 1);
  EXPECT_EQ(check_layer_tasks(soon, layouts, {}).front(),
            "REDUCE of unit 103 before its last contribution, B s0 m1 layer 103");
}

}  // namespace
}  // namespace orthant::pipeline
