// SPDX-License-Identifier: Apache-2.0
// The tasks of training steps as data, on the virtual clock: YaFSDP's four conditions follow from claims, every claim
// is needed, and gathers and reductions overlap with computation.
#include <orthant/fsdp/engine.hpp>

#include <algorithm>
#include <random>

#include <gtest/gtest.h>
#include <orthant/core/base/error.hpp>
#include <orthant/core/stream/virtual_clock.hpp>
#include <orthant/tests/harness/plan/conditions.hpp>
#include <orthant/tests/harness/plan/fake_group.hpp>
#include <orthant/tests/harness/plan/layer_loop.hpp>

namespace orthant::fsdp {
namespace {

using tests::TaskLog;
using train::Residency;

struct Plan {
  int blocks = 4;
  std::int64_t width = 5;
  std::vector<int> microbatches = {2, 1};
  Residency residency = Residency::layer;
  int alternating_buffers = 2;
  bool reshards = false;
  std::function<double()> compute_us = [] { return 10.0; };
  std::function<double(std::int64_t)> collective_us = [](std::int64_t) { return 4.0; };
};

void submit(const Plan& plan, stream::Scheduler& scheduler) {
  tests::IdleGroup group(1, 2);
  tests::NumberModel model(plan.blocks, plan.width);
  const auto compute = scheduler.add_stream("compute", stream::StreamKind::compute);
  const Lanes lanes{.gather = {&group, scheduler.add_stream("gather", stream::StreamKind::request)},
                    .reduce = {&group, scheduler.add_stream("reduce", stream::StreamKind::request)}};
  Engine engine(model.table, model.store, scheduler, lanes, tests::number_weights(),
                {.residency = {plan.residency, plan.residency},
                 .alternating_buffers = plan.alternating_buffers,
                 .cost_us = plan.collective_us});
  tests::LayerLoop loop({.model = model,
                         .scheduler = scheduler,
                         .compute = compute,
                         .lifecycle = engine,
                         .sync = engine,
                         .store = engine,
                         .gradients = plan.residency,
                         .reshards = plan.reshards,
                         .compute_us = plan.compute_us});
  for (int count : plan.microbatches) loop.step(count);
  loop.validate();
}

/// Which buffer a unit lies in, worked out from its name.
tests::PlanRules rules(const Plan& plan) {
  return {.slot = [plan](const std::string& unit) {
    if (plan.residency == Residency::chunk || unit.rfind("layers.", 0) != 0) return unit;
    return "blocks " + std::to_string(std::stoi(unit.substr(7)) % plan.alternating_buffers);
  }};
}

TEST(Plan, TheFourConditionsFollowFromClaimsAndHoldInTime) {
  std::mt19937 random(5);
  const auto between = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int round = 0; round < 30; ++round) {
    Plan plan{.blocks = between(0, 7),
              .width = between(1, 90),
              .microbatches = {between(1, 3), between(1, 3)},
              .residency = round % 2 == 0 ? Residency::layer : Residency::chunk,
              .alternating_buffers = between(1, 3)};
    plan.compute_us = [&] { return between(0, 20); };
    plan.collective_us = [&](std::int64_t) { return between(0, 20); };
    stream::VirtualClock clock;
    TaskLog log(clock);
    submit(plan, log);
    EXPECT_EQ(first_violation(log.tasks(), rules(plan)), "");
    EXPECT_EQ(first_overlap(clock.records(), conditions(log.tasks(), rules(plan))), "");
  }
}

TEST(Plan, IsNoLongerSafeWithoutAnySingleClaim) {
  for (Residency residency : {Residency::layer, Residency::chunk}) {
    const Plan plan{.blocks = 3, .residency = residency};
    stream::VirtualClock whole;
    TaskLog counted(whole);
    submit(plan, counted);
    ASSERT_EQ(first_violation(counted.tasks(), rules(plan)), "");
    for (int claim = 0; claim < counted.claims(); ++claim) {
      stream::VirtualClock clock;
      TaskLog log(clock, {.dropped_claim = claim});
      bool rejected = false;
      try {
        submit(plan, log);
      } catch (const InternalError&) {
        rejected = true;
      }
      EXPECT_TRUE(rejected || first_violation(log.tasks(), rules(plan)) != "")
          << log.dropped() << " (claim " << claim << ") may be left out unnoticed";
    }
  }
}

TEST(Plan, GathersOnceWhatABufferHoldsAlready) {
  const auto gathers = [](Residency residency, bool reshards = false) {
    stream::VirtualClock clock;
    submit({.blocks = 4, .microbatches = {2}, .residency = residency, .reshards = reshards}, clock);
    return std::ranges::count_if(clock.records(),
                                 [](const auto& record) { return record.name.starts_with("AG layers"); });
  };
  EXPECT_EQ(gathers(Residency::chunk), 4 + 4);  // one step, and validation with its new weights
  // Per micro-batch four for F and two for B (the last two are still there); the second finds the first two of its own.
  EXPECT_EQ(gathers(Residency::layer), (4 + 2) + (2 + 2) + 4);
  for (const Residency residency : {Residency::chunk, Residency::layer}) {
    EXPECT_EQ(gathers(residency, true), 2 * (4 + 4) + 4) << "what was given up is gathered again, for each use";
  }
}

/// By how much the makespan grows when the `which`-th task of that name takes `delay` longer.
double growth(const Plan& plan, const std::string& name, int which, double delay) {
  const auto makespan = [&](double extra) {
    int seen = 0;
    stream::VirtualClock clock;
    TaskLog log(clock, {.edit = [&](stream::Task& task) {
                  if (task.name == name && seen++ == which) task.cost_us += extra;
                }});
    submit(plan, log);
    EXPECT_GT(seen, which) << name;
    return clock.makespan_us();
  };
  return makespan(delay) - makespan(0);
}

TEST(Plan, ADelayedGatherOrReductionIsHiddenBehindComputation) {
  const Plan plan{.blocks = 6, .microbatches = {2}};
  constexpr double kDelay = 5.0;
  EXPECT_LT(growth(plan, "AG layers.3", 0, kDelay), kDelay);  // forward
  EXPECT_LT(growth(plan, "AG layers.1", 1, kDelay), kDelay);  // backward
  EXPECT_LT(growth(plan, "RS layers.3", 0, kDelay), kDelay);
}

TEST(Plan, WithOneBufferNothingIsHidden) {
  const Plan plan{.blocks = 6, .microbatches = {2}, .alternating_buffers = 1};
  constexpr double kDelay = 5.0;
  EXPECT_DOUBLE_EQ(growth(plan, "AG layers.3", 0, kDelay), kDelay);
  EXPECT_DOUBLE_EQ(growth(plan, "AG layers.1", 1, kDelay), kDelay);
  EXPECT_DOUBLE_EQ(growth(plan, "RS layers.3", 0, kDelay), kDelay);
}

}  // namespace
}  // namespace orthant::fsdp
