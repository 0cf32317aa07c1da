// SPDX-License-Identifier: Apache-2.0
// The tasks of training steps as data, on the virtual clock: what must wait does, every claim is needed, and buckets
// overlap with the backward of earlier layers.
#include <orthant/dp/engine.hpp>

#include <random>

#include <gtest/gtest.h>
#include <orthant/core/base/error.hpp>
#include <orthant/core/stream/virtual_clock.hpp>
#include <orthant/tests/harness/plan/conditions.hpp>
#include <orthant/tests/harness/plan/fake_group.hpp>
#include <orthant/tests/harness/plan/layer_loop.hpp>

namespace orthant::dp {
namespace {

using tests::TaskLog;

constexpr std::int64_t kOneBucket = 1 << 30;

struct Plan {
  int blocks = 4;
  std::int64_t width = 5;
  std::vector<int> microbatches = {2, 1};
  std::int64_t bucket_bytes = 1500;
  std::function<double()> compute_us = [] { return 10.0; };
  std::function<double(std::int64_t)> collective_us = [](std::int64_t) { return 4.0; };
};

void submit(const Plan& plan, stream::Scheduler& scheduler) {
  tests::IdleGroup group(1, 2);
  tests::NumberModel model(plan.blocks, plan.width);
  const auto compute = scheduler.add_stream("compute", stream::StreamKind::compute);
  const comm::Lane lane{&group, scheduler.add_stream("reduce", stream::StreamKind::request)};
  Engine engine(model.table, model.store, scheduler, lane, tests::number_weights(),
                {.bucket_bytes = plan.bucket_bytes, .cost_us = plan.collective_us});
  tests::LayerLoop loop({.model = model,
                         .scheduler = scheduler,
                         .compute = compute,
                         .lifecycle = engine,
                         .sync = engine,
                         .store = engine,
                         .compute_us = plan.compute_us});
  for (int count : plan.microbatches) loop.step(count);
  loop.validate();
}

tests::PlanRules rules(const Plan& plan) {
  return {.bucket = [plan](const std::string& task) {
    const tests::NumberModel model(plan.blocks, plan.width);
    const auto buckets = make_buckets(model.table, plan.bucket_bytes / 4);
    std::vector<std::string> units;
    for (const auto& member : buckets.at(std::stoi(task.substr(std::string("AR bucket ").size()))).members) {
      units.push_back(model.table.unit(member.unit).name);
    }
    return units;
  }};
}

TEST(Plan, ConditionsFollowFromClaimsAndHoldInTime) {
  std::mt19937 random(6);
  const auto between = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int round = 0; round < 30; ++round) {
    Plan plan{.blocks = between(0, 7),
              .width = between(1, 90),
              .microbatches = {between(1, 3), between(1, 3)},
              .bucket_bytes = between(1, 6000)};
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
  const Plan plan{.blocks = 3};
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

TEST(Plan, NamesBucketsByTheirUnits) {
  stream::VirtualClock clock;
  submit({.blocks = 4, .microbatches = {1}, .bucket_bytes = 1500}, clock);
  std::vector<std::string> names;
  for (const auto& record : clock.records()) {
    if (record.name.starts_with("AR")) names.push_back(record.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"AR bucket 0 (head … layers.3)", "AR bucket 1 (layers.2 … layers.1)",
                                             "AR bucket 2 (layers.0 … embedding)", "AR bucket 3 (norms)"}));
}

/// By how much the makespan grows when the first bucket's all-reduce takes `delay` longer.
double growth(const Plan& plan, double delay) {
  const auto makespan = [&](double extra) {
    bool seen = false;
    stream::VirtualClock clock;
    TaskLog log(clock, {.edit = [&](stream::Task& task) {
                  if (!task.name.starts_with("AR bucket 0")) return;
                  seen = true;
                  task.cost_us += extra;
                }});
    submit(plan, log);
    EXPECT_TRUE(seen);
    return clock.makespan_us();
  };
  return makespan(delay) - makespan(0);
}

TEST(Plan, ADelayedBucketIsHiddenBehindTheBackwardOfEarlierLayers) {
  EXPECT_LT(growth({.blocks = 6, .microbatches = {2}, .bucket_bytes = 1500}, 5.0), 5.0);
}

TEST(Plan, OneBucketForEverythingHidesNothing) {
  EXPECT_DOUBLE_EQ(growth({.blocks = 6, .microbatches = {2}, .bucket_bytes = kOneBucket}, 5.0), 5.0);
}

}  // namespace
}  // namespace orthant::dp
