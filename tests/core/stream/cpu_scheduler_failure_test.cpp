// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/stream/cpu_scheduler.hpp>

#include <atomic>
#include <future>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>

namespace orthant::stream {
namespace {

using namespace std::chrono_literals;
using Kind = Segment::Kind;

template <class Error>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(CpuSchedulerFailure, OfABodyDropsLaterTasksAndIsRethrownByEverything) {
  std::atomic<int> reports = 0;
  CpuScheduler scheduler({.on_failure = [&](std::exception_ptr error) {
    EXPECT_THROW(std::rethrow_exception(error), DataError);
    ++reports;
  }});
  const StreamId compute = scheduler.add_stream("compute", StreamKind::compute);
  std::promise<void> go;
  scheduler.submit({.name = "a", .stream = compute, .body = [&](TaskScope&) {
                      go.get_future().wait();
                      throw DataError("first");
                    }});
  auto captured = std::make_shared<int>();
  const std::weak_ptr<int> alive = captured;
  std::atomic<bool> later_ran = false;
  const TaskId later =
      scheduler.submit({.name = "b", .stream = compute, .body = [&later_ran, keep = std::move(captured)](TaskScope&) {
                          later_ran = true;
                        }});
  EXPECT_FALSE(alive.expired());
  go.set_value();
  EXPECT_EQ(message_of<DataError>([&] { scheduler.wait(later); }), "first");
  EXPECT_TRUE(alive.expired());
  EXPECT_EQ(reports, 1);
  EXPECT_EQ(message_of<DataError>([&] { scheduler.drain(); }), "first");
  EXPECT_EQ(
      message_of<DataError>([&] { scheduler.submit({.name = "c", .stream = compute, .body = [](TaskScope&) {}}); }),
      "first");
  EXPECT_FALSE(later_ran);
  EXPECT_EQ(reports, 1);
}

TEST(CpuSchedulerFailure, OfAnOperationIsRethrownWhetherItThrowsAtOnceOrLater) {
  for (const bool at_once : {true, false}) {
    CpuScheduler scheduler;
    const StreamId dp = scheduler.add_stream("dp", StreamKind::request);
    const Promise promise("AG");
    scheduler.submit({.name = "AG", .stream = dp, .start = [&] {
                        if (at_once) throw CommError("lost");
                        return promise.work();
                      }});
    promise.complete(std::make_exception_ptr(CommError("lost")));
    EXPECT_EQ(message_of<CommError>([&] { scheduler.drain(); }), "lost");
  }
}

TEST(CpuSchedulerFailure, ThrowsABlockedBodyOutOfItsScope) {
  CpuScheduler scheduler;
  const StreamId compute = scheduler.add_stream("compute", StreamKind::compute);
  const StreamId tp = scheduler.add_stream("tp", StreamKind::request);
  const StreamId dp = scheduler.add_stream("dp", StreamKind::request);
  const Promise never("AR"), breaks("AG");
  std::promise<void> in_body, unwound;
  scheduler.submit({.name = "F",
                    .stream = compute,
                    .body =
                        [&](TaskScope& scope) {
                          in_body.set_value();
                          scope.post([&] { return never.work(); });
                          try {
                            scope.wait(0);
                          } catch (const CommError&) {
                            unwound.set_value();
                            throw;
                          }
                        },
                    .nested = {{"AR", tp}},
                    .segments = {{Kind::post, 1, 0}, {Kind::wait, 0, 0}}});
  scheduler.submit({.name = "AG", .stream = dp, .start = [&] { return breaks.work(); }});
  in_body.get_future().wait();
  breaks.complete(std::make_exception_ptr(CommError("lost")));
  EXPECT_EQ(unwound.get_future().wait_for(10s), std::future_status::ready);
}

TEST(CpuSchedulerFailure, KeepsTheClosureOfAnOperationInFlight) {
  auto scheduler = std::make_unique<CpuScheduler>();
  const StreamId dp = scheduler->add_stream("dp", StreamKind::request);
  const StreamId other = scheduler->add_stream("other", StreamKind::request);
  const Promise in_flight("AG");
  auto captured = std::make_shared<int>();
  const std::weak_ptr<int> alive = captured;
  scheduler->submit(
      {.name = "AG", .stream = dp, .start = [&in_flight, keep = std::move(captured)] { return in_flight.work(); }});
  scheduler->submit({.name = "breaks", .stream = other, .start = []() -> Work { throw CommError("lost"); }});
  EXPECT_THROW(scheduler->drain(), CommError);
  EXPECT_FALSE(alive.expired());
  scheduler.reset();
  EXPECT_FALSE(alive.expired());
  in_flight.complete();
  EXPECT_TRUE(alive.expired());
}

TEST(CpuSchedulerFailure, DestructorEndsABlockedBodyWithoutReportingAFailure) {
  bool reported = false;
  const Promise never("AR");
  auto captured = std::make_shared<int>();
  const std::weak_ptr<int> alive = captured;
  std::promise<void> in_body;
  {
    CpuScheduler scheduler({.on_failure = [&](std::exception_ptr) { reported = true; }});
    const StreamId compute = scheduler.add_stream("compute", StreamKind::compute);
    const StreamId tp = scheduler.add_stream("tp", StreamKind::request);
    scheduler.submit({.name = "F",
                      .stream = compute,
                      .body =
                          [&, keep = std::move(captured)](TaskScope& scope) {
                            in_body.set_value();
                            scope.post([&never] { return never.work(); });
                            scope.wait(0);
                          },
                      .nested = {{"AR", tp}},
                      .segments = {{Kind::post, 1, 0}, {Kind::wait, 0, 0}}});
    in_body.get_future().wait();
  }
  EXPECT_FALSE(reported);
  EXPECT_TRUE(alive.expired());
}

TEST(CpuSchedulerFailure, DeadlineNamesTheHeadOfEachStreamAndWhatItWaitsFor) {
  CpuScheduler scheduler({.deadline = 100ms});
  const StreamId compute = scheduler.add_stream("compute", StreamKind::compute);
  const StreamId dp = scheduler.add_stream("dp", StreamKind::request);
  const StreamId tp = scheduler.add_stream("tp", StreamKind::request);
  scheduler.add_stream("unused", StreamKind::request);
  const Claim claim{scheduler.add_buffer("w"), content_of("x")};
  const Promise never("AG");
  scheduler.submit({.name = "AG layers.2", .stream = dp, .writes = {claim}, .start = [&] { return never.work(); }});
  scheduler.submit({.name = "F s1 m3",
                    .stream = compute,
                    .reads = {claim},
                    .body =
                        [](TaskScope& scope) {
                          scope.post(Work::done);
                          scope.wait(0);
                        },
                    .nested = {{"AR layers.2", tp}},
                    .segments = {{Kind::post, 1, 0}, {Kind::wait, 0, 0}}});
  const std::string message = message_of<CommError>([&] { scheduler.drain(); });
  EXPECT_TRUE(contains(message, "stream 'dp': 'AG layers.2' runs since")) << message;
  EXPECT_TRUE(contains(message, "stream 'compute': 'F s1 m3' waits for 'AG layers.2'")) << message;
  EXPECT_TRUE(contains(message, "stream 'tp': 'AR layers.2' is to be posted by 'F s1 m3'")) << message;
  EXPECT_TRUE(contains(message, "stream 'unused': idle")) << message;
}

TEST(CpuSchedulerFailure, DeadlineHoldsInsideABodyToo) {
  std::promise<std::string> reported;
  CpuScheduler scheduler({.deadline = 100ms, .on_failure = [&](std::exception_ptr error) {
                            reported.set_value(message_of<CommError>([&] { std::rethrow_exception(error); }));
                          }});
  const StreamId compute = scheduler.add_stream("compute", StreamKind::compute);
  const StreamId tp = scheduler.add_stream("tp", StreamKind::request);
  const Promise never("AR");
  scheduler.submit({.name = "F",
                    .stream = compute,
                    .body =
                        [&](TaskScope& scope) {
                          scope.post([&] { return never.work(); });
                          scope.wait(0);
                        },
                    .nested = {{"AR", tp}},
                    .segments = {{Kind::post, 1, 0}, {Kind::wait, 0, 0}}});
  const std::string message = reported.get_future().get();  // nobody waits outside
  EXPECT_TRUE(contains(message, "'F' runs since")) << message;
  EXPECT_TRUE(contains(message, "waits for its 'AR'")) << message;
}

TEST(CpuSchedulerFailure, DeadlineCountsFromTheLastThingThatFinished) {
  CpuScheduler scheduler({.deadline = 3000ms});
  const StreamId compute = scheduler.add_stream("compute", StreamKind::compute);
  for (int i = 0; i < 35; ++i) {
    scheduler.submit(
        {.name = "slow", .stream = compute, .body = [](TaskScope&) { std::this_thread::sleep_for(100ms); }});
  }
  EXPECT_NO_THROW(scheduler.drain());
}

TEST(CpuSchedulerFailure, BodiesThatLeaveTheirSegmentsAreNamed) {
  using Body = std::function<void(TaskScope&)>;
  const std::vector<Body> wrong = {
      [](TaskScope&) {},
      [](TaskScope& scope) { scope.wait(0); },
      [](TaskScope& scope) {
        scope.post(Work::done);
        scope.wait(1);
      },
      [](TaskScope& scope) {
        scope.post(Work::done);
        scope.wait(0);
        scope.wait(0);
      },
      [](TaskScope& scope) {
        scope.post(Work::done);
        scope.post(Work::done);
      },
      [](TaskScope& scope) { scope.post(Work::done); },
  };
  for (const Body& body : wrong) {
    CpuScheduler scheduler;
    const StreamId compute = scheduler.add_stream("compute", StreamKind::compute);
    const StreamId tp = scheduler.add_stream("tp", StreamKind::request);
    scheduler.submit({.name = "F s1 m3",
                      .stream = compute,
                      .body = body,
                      .nested = {{"AR", tp}},
                      .segments = {{Kind::post, 1, 0}, {Kind::compute, 1, -1}, {Kind::wait, 0, 0}}});
    EXPECT_TRUE(contains(message_of<InternalError>([&] { scheduler.drain(); }), "F s1 m3"));
  }
}

TEST(CpuSchedulerFailure, ATaskWithoutClosureIsRejected) {
  CpuScheduler scheduler;
  const StreamId compute = scheduler.add_stream("compute", StreamKind::compute);
  EXPECT_THROW(scheduler.submit({.name = "empty", .stream = compute}), InternalError);
}

}  // namespace
}  // namespace orthant::stream
