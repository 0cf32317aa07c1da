// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/stream/virtual_clock.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>

namespace orthant::stream {
namespace {

using Kind = Segment::Kind;

// A layer loop with prefetch: gathers fill `buffers` weight buffers in turn, forwards read them.
struct Loop {
  VirtualClock clock;
  StreamId compute = clock.add_stream("compute", StreamKind::compute);
  StreamId gather = clock.add_stream("gather", StreamKind::request);

  explicit Loop(int layers, int buffers, VirtualClock::Cost cost = {}) : clock(std::move(cost)) {
    std::vector<BufferId> weights;
    for (int i = 0; i < buffers; ++i) weights.push_back(clock.add_buffer(fmt::format("w{}", i)));
    for (int layer = 0; layer < layers; ++layer) {
      const Claim claim{weights[layer % buffers], content_of("weights", layer)};
      clock.submit({.name = fmt::format("AG {}", layer), .stream = gather, .writes = {claim}, .cost_us = 10});
      clock.submit({.name = fmt::format("F {}", layer), .stream = compute, .reads = {claim}, .cost_us = 30});
    }
  }
};

TEST(VirtualClock, OverlapsGathersWithTwoBuffers) {
  // AG0 0..10, F0 10..40, AG1 10..20, F1 40..70, AG2 waits for F0: 40..50, F2 70..100
  const Loop loop(3, 2);
  EXPECT_DOUBLE_EQ(loop.clock.makespan_us(), 100);
  const auto records = loop.clock.records();
  EXPECT_EQ(records[4].name, "AG 2");
  EXPECT_DOUBLE_EQ(records[4].begin_us, 40);
  EXPECT_DOUBLE_EQ(records[4].end_us, 50);
}

TEST(VirtualClock, SerialisesGathersWithOneBuffer) { EXPECT_DOUBLE_EQ(Loop(3, 1).clock.makespan_us(), 120); }

TEST(VirtualClock, HidesADelayOnlyWhereTheClaimsAllowIt) {
  const auto delayed = [](const Task& task, const Segment& segment) {
    return segment.cost_us + (task.name == "AG 2" ? 25.0 : 0.0);
  };
  EXPECT_DOUBLE_EQ(Loop(3, 2, delayed).clock.makespan_us(), 105);  // AG2 40..75, of the 25 us 20 are hidden
  EXPECT_DOUBLE_EQ(Loop(3, 1, delayed).clock.makespan_us(), 145);
}

struct TensorParallel {
  StreamId compute, tp;
  VirtualClock clock;
  explicit TensorParallel(VirtualClock::Cost cost = {}) : clock(std::move(cost)) {
    compute = clock.add_stream("compute", StreamKind::compute);
    tp = clock.add_stream("tp", StreamKind::request);
  }
  // Input gradient 20 us, its all-reduce 15 us beside the weight gradient of 10 us.
  TaskId submit_backward(const std::string& name) {
    return clock.submit(
        {.name = name,
         .stream = compute,
         .nested = {{"AR " + name, tp}},
         .segments = {{Kind::compute, 20, -1}, {Kind::post, 15, 0}, {Kind::compute, 10, -1}, {Kind::wait, 0, 0}}});
  }
};

TEST(VirtualClock, RunsANestedCollectiveBesideTheRestOfTheBody) {
  TensorParallel model;
  model.submit_backward("B0");
  EXPECT_DOUBLE_EQ(model.clock.makespan_us(), 35);
  const TaskRecord& record = model.clock.records()[0];
  EXPECT_DOUBLE_EQ(record.nested[0].begin_us, 20);
  EXPECT_DOUBLE_EQ(record.nested[0].end_us, 35);
  model.submit_backward("B1");
  EXPECT_DOUBLE_EQ(model.clock.makespan_us(), 70);
}

TEST(VirtualClock, ChargesTheHookForEachSegmentByName) {
  TensorParallel model([](const Task& task, const Segment& segment) {
    const bool delayed = segment.kind == Kind::post && task.nested[segment.nested].name == "AR B0";
    return segment.cost_us + (delayed ? 100 : 0);
  });
  model.submit_backward("B0");
  model.submit_backward("B1");
  EXPECT_DOUBLE_EQ(model.clock.makespan_us(), 170);
}

TEST(VirtualClock, KeepsTheReservedPlaceOfANestedCollective) {
  // "late" was submitted after B0, so it stands behind B0's all-reduce although it is ready at 0.
  TensorParallel model;
  model.submit_backward("B0");
  model.clock.submit({.name = "late", .stream = model.tp, .cost_us = 5});
  EXPECT_DOUBLE_EQ(model.clock.records()[1].begin_us, 35);
  EXPECT_DOUBLE_EQ(model.clock.makespan_us(), 40);
}

TEST(VirtualClock, RunsANestedCollectiveAfterWhatStandsBeforeIt) {
  TensorParallel model;
  model.clock.submit({.name = "early", .stream = model.tp, .cost_us = 50});
  model.submit_backward("B0");
  EXPECT_DOUBLE_EQ(model.clock.records()[1].nested[0].begin_us, 50);
  EXPECT_DOUBLE_EQ(model.clock.makespan_us(), 65);
}

TEST(VirtualClock, KnowsOnlySubmittedTasks) {
  VirtualClock clock;
  EXPECT_DOUBLE_EQ(clock.makespan_us(), 0);
  EXPECT_THROW(clock.wait(TaskId{0}), InternalError);
}

}  // namespace
}  // namespace orthant::stream
