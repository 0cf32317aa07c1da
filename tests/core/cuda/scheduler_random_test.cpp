// SPDX-License-Identifier: Apache-2.0
// Random task graphs on a device that runs its streams in random order: every task must find what it claims to read,
// every body what its nested collectives made. A wait that is missing, or stands before its Record, shows in the data.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <orthant/core/cuda/cuda_scheduler.hpp>
#include <orthant/core/cuda/event_relay.hpp>
#include <orthant/core/cuda/recording_driver.hpp>

namespace orthant::cuda {
namespace {

using stream::Content;
using stream::Segment;
using stream::StreamId;
using stream::StreamKind;
using stream::Task;
using stream::TaskScope;
using stream::Work;

struct Plan {
  std::vector<StreamKind> streams;
  std::vector<Task> tasks;
};

Plan random_plan(std::mt19937& random, int buffers) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Plan plan;
  const int computes = 1 + below(2);
  const int requests = 1 + below(3);
  plan.streams.assign(static_cast<std::size_t>(computes), StreamKind::compute);
  plan.streams.resize(static_cast<std::size_t>(computes + requests), StreamKind::request);
  std::vector<Content> contents(static_cast<std::size_t>(buffers));
  std::vector<bool> was_read(contents.size());
  const int count = 1 + below(40);
  for (int t = 0; t < count; ++t) {
    Task task{.name = fmt::format("t{}", t), .stream = StreamId{below(computes + requests)}};
    for (int b = 0; b < buffers; ++b) {
      const auto i = static_cast<std::size_t>(b);
      const bool reads = contents[i] != 0 && below(3) == 0;
      const bool writes = (contents[i] == 0 || was_read[i] || reads) && below(3) == 0;
      if (reads) task.reads.push_back({stream::BufferId{b}, contents[i]});
      if (writes) task.writes.push_back({stream::BufferId{b}, contents[i] = stream::content_of("random", t, b)});
      was_read[i] = !writes && (was_read[i] || reads);
    }
    if (task.stream.value < computes) {
      const int nested = below(4);
      for (int n = 0; n < nested; ++n) {
        task.nested.push_back({fmt::format("t{}n{}", t, n), StreamId{computes + below(requests)}});
        task.segments.push_back({Segment::Kind::post, 0, n});
      }
      for (int n = nested - 1; n >= 0; --n) {
        const auto after_post = task.segments.begin() + n + 1;
        task.segments.insert(after_post + below(static_cast<int>(task.segments.end() - after_post) + 1),
                             {Segment::Kind::wait, 0, n});
      }
    }
    plan.tasks.push_back(std::move(task));
  }
  return plan;
}

struct Simulation {
  RecordingDriver& driver;
  EventRelay& relay;
  unsigned seed;
  bool on_host;                                       // some requests pass through the host
  std::vector<Content> memory;                        // of the device; plain on purpose
  std::unordered_map<const void*, char> nested = {};  // 'p' posted, 'm' made; complete before anything runs
  std::atomic<int> wrong = 0;

  void read(const Task& task) {
    for (const auto& claim : task.reads) wrong += memory[static_cast<std::size_t>(claim.buffer.value)] != claim.content;
  }
  void write(const Task& task) {
    for (const auto& claim : task.writes) memory[static_cast<std::size_t>(claim.buffer.value)] = claim.content;
  }
  Work request(const std::string& name, std::function<void()> effect) {
    if (!on_host || (std::hash<std::string>{}(name) + seed) % 2 == 0) {
      driver.launch(std::move(effect));
      return Work::done();
    }
    const stream::Promise promise(name);
    relay.after(driver.current_stream(), [promise, effect = std::move(effect)](std::exception_ptr) {
      effect();
      promise.complete();
    });
    return promise.work();
  }
  void body(const Task& task, TaskScope& scope) {
    driver.launch([this, &task] { read(task); });
    for (const Segment& segment : task.segments) {
      const auto& collective = task.nested[static_cast<std::size_t>(segment.nested)];
      char& state = nested.at(&collective);
      if (segment.kind == Segment::Kind::post) {
        driver.launch([&state] { state = 'p'; });
        scope.post([this, &collective, &state] {
          return request(collective.name, [this, &state] { wrong += std::exchange(state, 'm') != 'p'; });
        });
      } else {
        scope.wait(segment.nested);
        driver.launch([this, &state] { wrong += state != 'm'; });
      }
    }
    driver.launch([this, &task] { write(task); });
  }
};

void run(unsigned seed, bool on_host) {
  std::mt19937 random(seed);
  const int buffers = 1 + static_cast<int>(random() % 5);
  const Plan plan = random_plan(random, buffers);
  RecordingDriver driver({.seed = seed});
  EventRelay relay(driver);
  Simulation simulation{driver, relay, seed, on_host, std::vector<Content>(static_cast<std::size_t>(buffers))};
  for (const Task& task : plan.tasks) {
    for (const auto& nested : task.nested) simulation.nested[&nested] = 0;
  }
  CudaScheduler scheduler(driver, {.deadline = std::chrono::seconds(30), .record = true});
  for (const StreamKind kind : plan.streams) scheduler.add_stream("s", kind);
  for (int b = 0; b < buffers; ++b) scheduler.add_buffer("b");
  for (const Task& planned : plan.tasks) {
    Task task = planned;
    if (plan.streams[static_cast<std::size_t>(task.stream.value)] == StreamKind::compute) {
      task.body = [&](TaskScope& scope) { simulation.body(planned, scope); };
    } else {
      task.start = [&] {
        return simulation.request(planned.name, [&] {
          simulation.read(planned);
          simulation.write(planned);
        });
      };
    }
    scheduler.submit(std::move(task));
  }
  scheduler.drain();
  ASSERT_EQ(simulation.wrong, 0) << "seed " << seed;
  const auto records = scheduler.records();
  ASSERT_EQ(records.size(), plan.tasks.size());
  for (const auto& record : records) {
    for (const auto& nested : record.nested) ASSERT_GT(nested.end_us, 0) << "seed " << seed << " " << nested.name;
  }

  // CUDA ignores a wait for an event without a Record.
  std::set<void*> recorded;
  for (const auto& [where, command] : driver.log()) {
    if (const auto* record = std::get_if<Record>(&command)) recorded.insert(record->event.raw);
    const auto* wait = std::get_if<WaitFor>(&command);
    ASSERT_TRUE(!wait || recorded.contains(wait->event.raw));
  }
}

TEST(CudaSchedulerRandom, NeverViolatesAClaimOnTheDevice) {
  for (unsigned seed = 0; seed < 200; ++seed) run(seed, false);
}

TEST(CudaSchedulerRandom, NeverViolatesAClaimWhereTheHostTakesPart) {
  for (unsigned seed = 0; seed < 200; ++seed) run(seed, true);
}

}  // namespace
}  // namespace orthant::cuda
