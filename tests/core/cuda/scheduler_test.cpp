// SPDX-License-Identifier: Apache-2.0
// What the scheduler puts on the device, as data; the device moves only when a test says so.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/cuda/cuda_scheduler.hpp>
#include <orthant/core/cuda/recording_driver.hpp>

namespace orthant::cuda {
namespace {

using namespace std::chrono_literals;
using stream::content_of;
using stream::Segment;
using stream::StreamKind;
using stream::TaskScope;
using stream::Work;

/// Gives the dispatcher time until `holds`.
template <class Claim>
bool soon(const Claim& holds) {
  for (int i = 0; i < 5'000 && !holds(); ++i) std::this_thread::sleep_for(1ms);
  return holds();
}

/// The log with streams and events numbered in order of appearance: "s0 copy, s0 record e0, s1 wait e0".
std::vector<std::string> lines(const RecordingDriver& driver) {
  std::vector<void*> streams, events;
  const auto number = [](std::vector<void*>& seen, void* handle) {
    const auto it = std::find(seen.begin(), seen.end(), handle);
    if (it != seen.end()) return it - seen.begin();
    seen.push_back(handle);
    return static_cast<std::ptrdiff_t>(seen.size()) - 1;
  };
  std::vector<std::string> text;
  for (const auto& [where, command] : driver.log()) {
    const auto s = number(streams, where.raw);
    if (const auto* record = std::get_if<Record>(&command)) {
      text.push_back(fmt::format("s{} record e{}", s, number(events, record->event.raw)));
    } else if (const auto* wait = std::get_if<WaitFor>(&command)) {
      text.push_back(fmt::format("s{} wait e{}", s, number(events, wait->event.raw)));
    } else {
      text.push_back(fmt::format("s{} run", s));
    }
  }
  return text;
}

struct Fixture : testing::Test {
  RecordingDriver driver{{.by_hand = true}};
  const std::function<void()> nothing = [] {};
  const std::function<void(TaskScope&)> body = [this](TaskScope&) { driver.launch(nothing); };
  const std::function<Work()> start = [this] {
    driver.launch(nothing);
    return Work::done();
  };
  void finish_device() {
    while (driver.step()) {
    }
  }
};

using CudaSchedulerOnDevice = Fixture;

TEST_F(CudaSchedulerOnDevice, TurnsClaimsIntoEventWaits) {
  CudaScheduler scheduler(driver);
  const auto compute = scheduler.add_stream("compute", StreamKind::compute);
  const auto gather = scheduler.add_stream("gather", StreamKind::request);
  const auto weights = scheduler.add_buffer("weights");
  const auto first = content_of("weights", 1), second = content_of("weights", 2);
  scheduler.submit({.name = "AG 1", .stream = gather, .writes = {{weights, first}}, .start = start});
  scheduler.submit({.name = "F 1", .stream = compute, .reads = {{weights, first}}, .body = body});
  scheduler.submit({.name = "AG 2", .stream = gather, .writes = {{weights, second}}, .start = start});
  const std::vector<std::string> expected = {
      "s0 run",     "s0 record e0",                   // AG 1
      "s1 wait e0", "s1 run",       "s1 record e1",   // F 1 reads what it wrote
      "s0 wait e1", "s0 run",       "s0 record e2"};  // AG 2 overwrites what F 1 read
  EXPECT_TRUE(soon([&] { return driver.log().size() == expected.size(); }));
  EXPECT_EQ(lines(driver), expected);
  finish_device();
  scheduler.drain();
}

TEST_F(CudaSchedulerOnDevice, NestedCollectivesBecomeEventEdgesAndNoHostWaits) {
  CudaScheduler scheduler(driver);
  const auto compute = scheduler.add_stream("compute", StreamKind::compute);
  const auto tp = scheduler.add_stream("tp", StreamKind::request);
  scheduler.submit({.name = "F 1",
                    .stream = compute,
                    .body =
                        [&](TaskScope& scope) {
                          body(scope);
                          scope.post(start);
                          body(scope);
                          scope.wait(0);
                          body(scope);
                        },
                    .nested = {{"AR", tp}},
                    .segments = {{Segment::Kind::post, 0, 0}, {Segment::Kind::wait, 0, 0}}});
  const std::vector<std::string> expected = {
      "s0 run",     "s0 record e0",                  // the body, up to the post
      "s1 wait e0", "s1 run",       "s1 record e0",  // the collective: the first event is free again
      "s0 run",     "s0 wait e0",   "s0 run",       "s0 record e1"};
  EXPECT_TRUE(soon([&] { return driver.log().size() == expected.size(); }))
      << "the device has not moved, so the host waited";
  EXPECT_EQ(lines(driver), expected);
  finish_device();
  scheduler.drain();
}

TEST_F(CudaSchedulerOnDevice, RunsAheadOfTheDeviceInSubmissionOrder) {
  CudaScheduler scheduler(driver);
  const stream::StreamId streams[] = {
      scheduler.add_stream("a", StreamKind::compute), scheduler.add_stream("b", StreamKind::request),
      scheduler.add_stream("c", StreamKind::compute), scheduler.add_stream("d", StreamKind::request)};
  const auto buffer = scheduler.add_buffer("buffer");
  constexpr int kTasks = 100;
  std::vector<int> order;  // the dispatcher's
  for (int t = 0; t < kTasks; ++t) {
    stream::Task task{.name = fmt::format("{}", t), .stream = streams[t * 7 % 4]};
    if (t > 0) task.reads = {{buffer, content_of("c", t)}};
    task.writes = {{buffer, content_of("c", t + 1)}};
    if (task.stream.value % 2 == 0) {
      task.body = [&, t](TaskScope& scope) { order.push_back(t), body(scope); };
    } else {
      task.start = [&, t] { return order.push_back(t), start(); };
    }
    scheduler.submit(std::move(task));
  }
  EXPECT_TRUE(soon([&] { return driver.log().size() == 3 * kTasks - 1; })) << driver.log().size();  // wait, run, record
  finish_device();
  scheduler.drain();
  std::vector<int> wanted(kTasks);
  std::iota(wanted.begin(), wanted.end(), 0);
  EXPECT_EQ(order, wanted);
}

TEST_F(CudaSchedulerOnDevice, KeepsAReaderOffTheDeviceWhileItsWriterIsOnTheHost) {
  CudaScheduler scheduler(driver);
  const auto compute = scheduler.add_stream("compute", StreamKind::compute);
  const auto staged = scheduler.add_stream("staged", StreamKind::request);
  const auto other = scheduler.add_stream("other", StreamKind::request);
  const auto buffer = scheduler.add_buffer("buffer");
  const stream::Promise promise("MPI transfer");
  scheduler.submit({.name = "W", .stream = staged, .writes = {{buffer, 1}}, .start = [&] { return promise.work(); }});
  scheduler.submit({.name = "R", .stream = compute, .reads = {{buffer, 1}}, .body = body});
  scheduler.submit({.name = "O", .stream = other, .start = start});
  EXPECT_TRUE(soon([&] { return driver.log().size() == 2; }));
  EXPECT_EQ(lines(driver), (std::vector<std::string>{"s0 run", "s0 record e0"}));  // O only
  promise.complete();
  EXPECT_TRUE(soon([&] { return driver.log().size() == 6; }));
  EXPECT_EQ(lines(driver)[3], "s2 wait e1");
  finish_device();
  scheduler.drain();
}

TEST(CudaScheduler, GoesOnWithRequestsWhileABodyWaitsForTheHost) {
  RecordingDriver driver;
  CudaScheduler scheduler(driver, {.deadline = 5s});
  const auto compute = scheduler.add_stream("compute", StreamKind::compute);
  const auto tp = scheduler.add_stream("tp", StreamKind::request);
  const auto dp = scheduler.add_stream("dp", StreamKind::request);
  const stream::Promise nested("nested"), first("first");
  scheduler.submit({.name = "first", .stream = dp, .start = [&] { return first.work(); }});
  // The nested collective ends only after the second operation of `dp`, which is not ready yet when the body begins.
  scheduler.submit({.name = "F",
                    .stream = compute,
                    .body =
                        [&](TaskScope& scope) {
                          scope.post([&] { return nested.work(); });
                          first.complete();
                          scope.wait(0);
                        },
                    .nested = {{"AR", tp}},
                    .segments = {{Segment::Kind::post, 0, 0}, {Segment::Kind::wait, 0, 0}}});
  scheduler.submit({.name = "second", .stream = dp, .start = [&] { return nested.complete(), Work::done(); }});
  EXPECT_NO_THROW(scheduler.drain());
}

TEST_F(CudaSchedulerOnDevice, KeepsClosuresUntilTheDeviceIsDone) {
  CudaScheduler scheduler(driver);
  const auto compute = scheduler.add_stream("compute", StreamKind::compute);
  auto memory = std::make_shared<int>(0);
  const std::weak_ptr<int> watch = memory;
  const auto id =
      scheduler.submit({.name = "F", .stream = compute, .body = [&, memory](TaskScope& scope) { body(scope); }});
  memory.reset();
  EXPECT_TRUE(soon([&] { return driver.log().size() == 2; }));
  std::this_thread::sleep_for(5ms);
  EXPECT_FALSE(watch.expired());
  finish_device();
  scheduler.wait(id);
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace orthant::cuda
