// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/stream/cpu_scheduler.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>

namespace orthant::stream {
namespace {

using namespace std::chrono_literals;
using Kind = Segment::Kind;

TEST(CpuScheduler, RunsAStreamInOrderAndWaitsAcrossStreams) {
  CpuScheduler scheduler;
  const StreamId compute = scheduler.add_stream("compute", StreamKind::compute);
  const StreamId side = scheduler.add_stream("side", StreamKind::compute);
  const BufferId buffer = scheduler.add_buffer("b");
  const Claim claim{buffer, content_of("x")};
  std::string log;
  scheduler.submit({.name = "a", .stream = compute, .body = [&](TaskScope&) {
                      std::this_thread::sleep_for(5ms);
                      log += "a";
                    }});
  scheduler.submit({.name = "b", .stream = compute, .writes = {claim}, .body = [&](TaskScope&) { log += "b"; }});
  const TaskId last =
      scheduler.submit({.name = "c", .stream = side, .reads = {claim}, .body = [&](TaskScope&) { log += "c"; }});
  scheduler.wait(last);
  EXPECT_EQ(log, "abc");
}

TEST(CpuScheduler, KeepsOneOperationInFlightPerRequestStream) {
  CpuScheduler scheduler;
  const StreamId gather = scheduler.add_stream("gather", StreamKind::request);
  const StreamId reduce = scheduler.add_stream("reduce", StreamKind::request);
  const Promise first("first"), other("other");
  bool second_started = false, other_started = false;
  scheduler.submit({.name = "first", .stream = gather, .start = [&] { return first.work(); }});
  const TaskId second = scheduler.submit({.name = "second", .stream = gather, .start = [&] {
                                            second_started = true;
                                            return Work::done();
                                          }});
  scheduler.submit({.name = "other", .stream = reduce, .start = [&] {
                      other_started = true;
                      return other.work();
                    }});
  EXPECT_TRUE(other_started);  // in submit(), on this thread
  EXPECT_FALSE(second_started);
  first.complete();
  EXPECT_TRUE(second_started);
  scheduler.wait(second);
  other.complete();
  scheduler.drain();
}

TEST(CpuScheduler, KnowsFinishedTasksByTheirIds) {
  CpuScheduler scheduler;
  const StreamId compute = scheduler.add_stream("compute", StreamKind::compute);
  const TaskId id = scheduler.submit({.name = "a", .stream = compute, .body = [](TaskScope&) {}});
  scheduler.drain();
  scheduler.wait(id);
  EXPECT_THROW(scheduler.wait(TaskId{id.value + 1}), InternalError);
}

TEST(CpuScheduler, ReservesTheStreamForANestedCollectiveUntilItCompletes) {
  CpuScheduler scheduler;
  const StreamId compute = scheduler.add_stream("compute", StreamKind::compute);
  const StreamId tp = scheduler.add_stream("tp", StreamKind::request);
  std::promise<void> go;
  std::mutex mutex;
  std::string log;
  const auto note = [&](const char* what) {
    std::lock_guard lock(mutex);
    log += what;
  };
  scheduler.submit({.name = "F",
                    .stream = compute,
                    .body =
                        [&](TaskScope& scope) {
                          go.get_future().wait();
                          for (const char* name : {"0", "1"}) {
                            scope.post([&, name] {
                              note(name);
                              return Work::done();
                            });
                          }
                          scope.wait(1);
                          scope.wait(0);
                          note("F");
                        },
                    .nested = {{"AR 0", tp}, {"AR 1", tp}},
                    .segments = {{Kind::post, 1, 0}, {Kind::post, 1, 1}, {Kind::wait, 0, 1}, {Kind::wait, 0, 0}}});
  scheduler.submit({.name = "later", .stream = tp, .start = [&] {
                      note("later");
                      return Work::done();
                    }});
  note("-");
  go.set_value();
  scheduler.drain();
  EXPECT_EQ(log.substr(0, 3), "-01");
  EXPECT_NE(log.find("later"), std::string::npos);
}

// Something that a closure holds and that takes its time to go: a wait that returned too early would find it there.
std::shared_ptr<void> slow_to_release(std::atomic<bool>& released) {
  return {nullptr, [&released](void*) {
            std::this_thread::sleep_for(20ms);
            released = true;
          }};
}

TEST(CpuScheduler, DestroysClosuresBeforeTheTaskCountsAsDoneAndNotEarlier) {
  std::atomic<bool> start_released = false, body_released = false, nested_released = false;
  CpuScheduler scheduler;
  const StreamId compute = scheduler.add_stream("compute", StreamKind::compute);
  const StreamId gather = scheduler.add_stream("gather", StreamKind::request);
  const Promise promise("AG");
  const Claim claim{scheduler.add_buffer("b"), content_of("x")};
  const TaskId ag = scheduler.submit(
      {.name = "AG", .stream = gather, .writes = {claim}, .start = [&promise, keep = slow_to_release(start_released)] {
         return promise.work();
       }});
  const TaskId f =
      scheduler.submit({.name = "F",
                        .stream = compute,
                        .reads = {claim},
                        .body =
                            [&, keep = slow_to_release(body_released)](TaskScope& scope) {
                              scope.post([keep_too = slow_to_release(nested_released)] { return Work::done(); });
                              scope.wait(0);
                              EXPECT_TRUE(nested_released);
                            },
                        .nested = {{"AR", gather}},
                        .segments = {{Kind::post, 1, 0}, {Kind::wait, 0, 0}}});
  EXPECT_FALSE(start_released);
  EXPECT_FALSE(body_released);
  std::thread performer([&] { promise.complete(); });
  scheduler.wait(ag);
  EXPECT_TRUE(start_released);
  scheduler.wait(f);
  EXPECT_TRUE(body_released);
  performer.join();
}

TEST(CpuScheduler, DoesNotRecurseOverOperationsThatAreDoneAtOnce) {
  CpuScheduler scheduler;
  const StreamId gate = scheduler.add_stream("gate", StreamKind::request);
  const StreamId stream = scheduler.add_stream("stream", StreamKind::request);
  const Claim claim{scheduler.add_buffer("b"), content_of("x")};
  const Promise open("gate");
  std::vector<std::uintptr_t> frames;
  scheduler.submit({.name = "gate", .stream = gate, .writes = {claim}, .start = [&] { return open.work(); }});
  for (int i = 0; i < 5000; ++i) {
    scheduler.submit({.name = "op", .stream = stream, .reads = {claim}, .start = [&] {
                        frames.push_back(reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)));
                        return Work::done();
                      }});
  }
  open.complete();
  ASSERT_EQ(frames.size(), 5000u);
  const auto [lowest, highest] = std::ranges::minmax(frames);
  EXPECT_LT(highest - lowest, 4096u);  // the stack does not grow with the number of operations
}

// A collective of two ranks whose last arriver completes the works of both, as the local fabric does.
class Rendezvous {
 public:
  Work arrive(int stream, int index) {
    std::unique_lock lock(mutex_);
    const auto key = std::pair(stream, index);
    const auto it = waiting_.find(key);
    if (it == waiting_.end()) return waiting_.emplace(key, Promise("rendezvous")).first->second.work();
    const Promise peer = it->second;
    waiting_.erase(it);
    lock.unlock();
    peer.complete();
    return Work::done();
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, int>, Promise> waiting_;
};

TEST(CpuScheduler, RanksAsThreadsCompleteEachOthersWorks) {
  Rendezvous rendezvous;
  const auto rank = [&rendezvous] {
    CpuScheduler scheduler({.deadline = 20s});
    const StreamId compute = scheduler.add_stream("compute", StreamKind::compute);
    std::vector<StreamId> streams;
    std::vector<BufferId> buffers;
    for (int s = 0; s < 3; ++s) {
      streams.push_back(scheduler.add_stream(fmt::format("s{}", s), StreamKind::request));
      buffers.push_back(scheduler.add_buffer(fmt::format("b{}", s)));
    }
    for (int i = 0; i < 300; ++i) {
      for (int s = 0; s < 3; ++s) {
        const Claim claim{buffers[s], content_of("x", s, i)};
        scheduler.submit({.name = "AG", .stream = streams[s], .writes = {claim}, .start = [&rendezvous, s, i] {
                            return rendezvous.arrive(s, i);
                          }});
        scheduler.submit({.name = "F",
                          .stream = compute,
                          .reads = {claim},
                          .body =
                              [&rendezvous, s, i](TaskScope& scope) {
                                scope.post([&rendezvous, s, i] { return rendezvous.arrive(s, 1000 + i); });
                                scope.wait(0);
                              },
                          .nested = {{"AR", streams[(s + 1) % 3]}},
                          .segments = {{Kind::post, 1, 0}, {Kind::wait, 0, 0}}});
      }
    }
    scheduler.drain();
  };
  std::thread other(rank);
  rank();
  other.join();
}

TEST(CpuScheduler, TracesTasksAndNestedCollectivesOnTheirStreams) {
  trace::Tracer tracer;
  tracer.enable();
  CpuScheduler scheduler({.tracer = &tracer, .record = true});
  const StreamId compute = scheduler.add_stream("compute", StreamKind::compute);
  const StreamId tp = scheduler.add_stream("tp", StreamKind::request);
  scheduler.submit({.name = "F s0 m0",
                    .stream = compute,
                    .body =
                        [](TaskScope& scope) {
                          scope.post(Work::done);
                          scope.wait(0);
                        },
                    .nested = {{"AR", tp}},
                    .segments = {{Kind::post, 1, 0}, {Kind::wait, 0, 0}}});
  scheduler.drain();
  EXPECT_EQ(tracer.tracks(), (std::vector<std::string>{"compute", "tp"}));
  const auto spans = tracer.spans();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].name, "AR");
  EXPECT_EQ(spans[0].track.value, tp.value);
  EXPECT_EQ(spans[1].name, "F s0 m0");
  EXPECT_LE(spans[1].begin, spans[0].begin);
  EXPECT_LE(spans[0].end, spans[1].end);
  const auto records = scheduler.records();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_LE(records[0].begin_us, records[0].nested[0].begin_us);
  EXPECT_GT(records[0].nested[0].end_us, 0);
}

}  // namespace
}  // namespace orthant::stream
