// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/stream/task_graph.hpp>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>

namespace orthant::stream {
namespace {

using Kind = Segment::Kind;

struct GraphFixture {
  TaskGraph graph;
  StreamId compute = graph.add_stream("compute", StreamKind::compute);
  StreamId tp = graph.add_stream("tp", StreamKind::request);
  BufferId buffer = graph.add_buffer("b");

  Task with_segments(std::vector<Segment> segments, int nested) const {
    Task task;
    task.name = "F s0 m0";
    task.stream = compute;
    task.segments = std::move(segments);
    for (int i = 0; i < nested; ++i) task.nested.push_back({"AR", tp});
    return task;
  }
};

TEST(TaskGraph, WaitsForThePredecessorOnTheStreamAndForClaims) {
  GraphFixture f;
  const Content content = content_of("x");
  Task write{.name = "write", .stream = f.tp, .writes = {{f.buffer, content}}};
  Task other{.name = "other", .stream = f.compute};
  Task read{.name = "read", .stream = f.compute, .reads = {{f.buffer, content}}};
  EXPECT_TRUE(f.graph.admit(write).waits_for.empty());
  EXPECT_TRUE(f.graph.admit(other).waits_for.empty());
  EXPECT_EQ(f.graph.admit(read).waits_for, (std::vector<TaskId>{{0}, {1}}));
  EXPECT_EQ(f.graph.admit(read).waits_for, (std::vector<TaskId>{{0}, {2}}));
  EXPECT_EQ(f.graph.size(), 4);
}

TEST(TaskGraph, AcceptsSegmentsThatPostAndWaitOnceEach) {
  GraphFixture f;
  const auto record = f.graph.admit(f.with_segments(
      {{Kind::compute, 1, -1}, {Kind::post, 1, 0}, {Kind::post, 1, 1}, {Kind::wait, 0, 1}, {Kind::wait, 0, 0}}, 2));
  ASSERT_EQ(record.nested.size(), 2u);
  EXPECT_EQ(record.nested[1].stream, f.tp);
}

TEST(TaskGraph, RejectsSegmentsThatWouldHangOrLeaveAnOperationOpen) {
  const std::vector<std::vector<Segment>> wrong = {
      {},                                                                                // never posted
      {{Kind::post, 1, 0}, {Kind::wait, 0, 0}},                                          // one of two
      {{Kind::post, 1, 1}, {Kind::post, 1, 0}, {Kind::wait, 0, 0}, {Kind::wait, 0, 1}},  // out of order
      {{Kind::post, 1, 0}, {Kind::wait, 0, 0}, {Kind::wait, 0, 1}, {Kind::post, 1, 1}},  // waits before its post
      {{Kind::post, 1, 0}, {Kind::post, 1, 1}, {Kind::wait, 0, 0}},                      // one is not waited for
      {{Kind::post, 1, 0}, {Kind::post, 1, 1}, {Kind::wait, 0, 0}, {Kind::wait, 0, 0}},  // waits twice
      {{Kind::post, 1, 0}, {Kind::post, 1, 1}, {Kind::wait, 0, 0}, {Kind::wait, 0, 1}, {Kind::post, 1, 2}},
  };
  GraphFixture f;
  for (const auto& segments : wrong) EXPECT_THROW(f.graph.admit(f.with_segments(segments, 2)), InternalError);
  EXPECT_EQ(f.graph.size(), 0);
}

TEST(TaskGraph, RejectsTasksThatDoNotSuitTheirStream) {
  GraphFixture f;
  Task nowhere{.name = "x", .stream = StreamId{9}};
  EXPECT_THROW(f.graph.admit(nowhere), InternalError);
  Task body{.name = "x", .stream = f.tp, .body = [](TaskScope&) {}};
  EXPECT_THROW(f.graph.admit(body), InternalError);
  Task start{.name = "x", .stream = f.compute, .start = [] { return Work::done(); }};
  EXPECT_THROW(f.graph.admit(start), InternalError);
  Task nested = f.with_segments({{Kind::post, 1, 0}, {Kind::wait, 0, 0}}, 1);
  nested.nested[0].stream = f.compute;
  EXPECT_THROW(f.graph.admit(nested), InternalError);
}

TEST(Reaches, FollowsPathsAndOnlyPaths) {
  // 0 -> 1 -> 3, 2 -> 3, 4 alone
  std::vector<TaskRecord> records(5);
  for (int i = 0; i < 5; ++i) records[i].id = TaskId{i};
  records[1].waits_for = {TaskId{0}};
  records[3].waits_for = {TaskId{1}, TaskId{2}};
  EXPECT_TRUE(reaches(records, TaskId{0}, TaskId{3}));
  EXPECT_TRUE(reaches(records, TaskId{2}, TaskId{3}));
  EXPECT_FALSE(reaches(records, TaskId{0}, TaskId{2}));
  EXPECT_FALSE(reaches(records, TaskId{3}, TaskId{0}));
  EXPECT_FALSE(reaches(records, TaskId{0}, TaskId{4}));
  EXPECT_FALSE(reaches(records, TaskId{3}, TaskId{3}));
}

}  // namespace
}  // namespace orthant::stream
