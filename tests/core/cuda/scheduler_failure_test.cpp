// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include <orthant/core/base/error.hpp>
#include <orthant/core/cuda/cuda_scheduler.hpp>
#include <orthant/core/cuda/recording_driver.hpp>

namespace orthant::cuda {
namespace {

using namespace std::chrono_literals;
using stream::Segment;
using stream::StreamKind;
using stream::TaskScope;
using stream::Work;

template <class Error>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing thrown";
}

const std::function<void(TaskScope&)> kNothing = [](TaskScope&) {};

TEST(CudaSchedulerFailure, OfACallOfTheDriverReachesTheWaiterAndOnFailure) {
  RecordingDriver driver({.by_hand = true, .on_enqueue = [](const Command& command) {
                            if (std::holds_alternative<WaitFor>(command))
                              throw InternalError("cudaStreamWaitEvent: invalid resource handle");
                          }});
  std::atomic<int> reported = 0;
  CudaScheduler scheduler(driver, {.on_failure = [&](std::exception_ptr) { ++reported; }});
  const auto a = scheduler.add_stream("a", StreamKind::compute), b = scheduler.add_stream("b", StreamKind::compute);
  const auto buffer = scheduler.add_buffer("buffer");
  const std::string found = message_of<InternalError>([&] {
    scheduler.submit({.name = "W", .stream = a, .writes = {{buffer, 1}}, .body = kNothing});
    scheduler.submit({.name = "R", .stream = b, .reads = {{buffer, 1}}, .body = kNothing});
    scheduler.drain();
  });
  EXPECT_EQ(found, "cudaStreamWaitEvent: invalid resource handle");
  EXPECT_EQ(reported, 1);
  EXPECT_THROW(scheduler.submit({.name = "later", .stream = a, .body = kNothing}), InternalError);
  while (driver.step()) {
  }
}

TEST(CudaSchedulerFailure, OfABodyOrAWorkDropsWhatHasNotBegun) {
  for (const bool in_body : {true, false}) {
    RecordingDriver driver;
    CudaScheduler scheduler(driver);
    const auto compute = scheduler.add_stream("compute", StreamKind::compute);
    const auto request = scheduler.add_stream("request", StreamKind::request);
    const auto buffer = scheduler.add_buffer("buffer");
    auto memory = std::make_shared<int>(0);
    const std::weak_ptr<int> watch = memory;
    std::atomic<bool> began = false;
    const stream::Promise promise("transfer");
    if (in_body) {
      scheduler.submit({.name = "F", .stream = compute, .writes = {{buffer, 1}}, .body = [&](TaskScope&) {
                          while (!began) std::this_thread::yield();
                          throw CommError("on purpose");
                        }});
    } else {
      scheduler.submit(
          {.name = "F", .stream = request, .writes = {{buffer, 1}}, .start = [&] { return promise.work(); }});
    }
    bool ran = false;
    scheduler.submit(
        {.name = "G", .stream = compute, .reads = {{buffer, 1}}, .body = [&ran, memory](TaskScope&) { ran = true; }});
    memory.reset();
    began = true;
    if (!in_body) promise.complete(std::make_exception_ptr(CommError("on purpose")));
    EXPECT_EQ(message_of<CommError>([&] { scheduler.drain(); }), "on purpose");
    EXPECT_FALSE(ran);
    for (int i = 0; i < 1000 && !watch.expired(); ++i) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(watch.expired());
  }
}

TEST(CudaSchedulerFailure, OfTheDeviceReachesTheWaiter) {
  RecordingDriver driver(
      {.nccl = [](const Command&) -> Work { throw InternalError("an illegal memory access was encountered"); }});
  CudaScheduler scheduler(driver);
  const auto request = scheduler.add_stream("request", StreamKind::request);
  scheduler.submit({.name = "AR", .stream = request, .start = [&] {
                      driver.enqueue(driver.current_stream(), AllReduce{});
                      return Work::done();
                    }});
  EXPECT_EQ(message_of<InternalError>([&] { scheduler.drain(); }), "an illegal memory access was encountered");
}

TEST(CudaSchedulerFailure, ByDeadlineNamesEachStreamsHead) {
  RecordingDriver driver({.by_hand = true});
  const stream::Promise promise("transfer");
  CudaScheduler scheduler(driver, {.deadline = 1s});
  const auto compute = scheduler.add_stream("compute", StreamKind::compute);
  const auto staged = scheduler.add_stream("staged", StreamKind::request);
  const auto gather = scheduler.add_stream("gather", StreamKind::request);
  const auto buffer = scheduler.add_buffer("buffer");
  scheduler.submit({.name = "S", .stream = staged, .writes = {{buffer, 1}}, .start = [&] { return promise.work(); }});
  scheduler.submit({.name = "AG", .stream = gather, .start = [] { return Work::done(); }});
  scheduler.submit({.name = "F", .stream = compute, .reads = {{buffer, 1}}, .body = kNothing});
  const std::string message = message_of<CommError>([&] { scheduler.drain(); });
  EXPECT_EQ(
      message,
      "nothing finished for 1.0 s; stream 'compute': 'F' waits for 'S'; stream 'staged': 'S' has begun on the host; "
      "stream 'gather': 'AG' is on the device");
  while (driver.step()) {
  }
}

TEST(CudaSchedulerFailure, OfACommunicatorIsFoundWhileSomebodyWaits) {
  RecordingDriver driver({.by_hand = true});
  CudaScheduler scheduler(driver, {.check = [] { throw CommError("dp [0 1]: NCCL reports: remote error"); }});
  const auto gather = scheduler.add_stream("gather", StreamKind::request);
  scheduler.submit({.name = "AG", .stream = gather, .start = [] { return Work::done(); }});
  EXPECT_EQ(message_of<CommError>([&] { scheduler.drain(); }), "dp [0 1]: NCCL reports: remote error");
  while (driver.step()) {
  }
}

TEST(CudaSchedulerFailure, ThrowsABodyOutOfItsScopeWhenTheSchedulerEnds) {
  RecordingDriver driver;
  const stream::Promise nested("nested");
  std::atomic<bool> waits = false, thrown_out = false;
  {
    CudaScheduler scheduler(driver);
    const auto compute = scheduler.add_stream("compute", StreamKind::compute);
    const auto tp = scheduler.add_stream("tp", StreamKind::request);
    scheduler.submit({.name = "F",
                      .stream = compute,
                      .body =
                          [&](TaskScope& scope) {
                            scope.post([&] { return nested.work(); });
                            waits = true;
                            try {
                              scope.wait(0);
                            } catch (const CommError&) {
                              thrown_out = true;
                              throw;
                            }
                          },
                      .nested = {{"AR", tp}},
                      .segments = {{Segment::Kind::post, 0, 0}, {Segment::Kind::wait, 0, 0}}});
    while (!waits) std::this_thread::yield();
  }
  EXPECT_TRUE(thrown_out);
  nested.complete();  // into nothing
}

TEST(CudaSchedulerFailure, ABodyThatDoesNotWaitAsDeclaredIsOurBug) {
  RecordingDriver driver;
  CudaScheduler scheduler(driver);
  const auto compute = scheduler.add_stream("compute", StreamKind::compute);
  const auto tp = scheduler.add_stream("tp", StreamKind::request);
  scheduler.submit({.name = "F",
                    .stream = compute,
                    .body = [](TaskScope& scope) { scope.post([] { return Work::done(); }); },
                    .nested = {{"AR", tp}},
                    .segments = {{Segment::Kind::post, 0, 0}, {Segment::Kind::wait, 0, 0}}});
  EXPECT_EQ(message_of<InternalError>([&] { scheduler.drain(); }), "task 'F': its body ends before its segments do");
}

}  // namespace
}  // namespace orthant::cuda
