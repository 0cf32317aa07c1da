// SPDX-License-Identifier: Apache-2.0
// Random task graphs on real threads. Memory is simulated by plain integers: every operation checks that it reads the
// contents it claimed, so a dependency that is not kept shows as a wrong value, and as a data race under a thread
// sanitizer.
#include <orthant/core/stream/cpu_scheduler.hpp>

#include <atomic>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <orthant/core/stream/virtual_clock.hpp>

#include "performer.hpp"

namespace orthant::stream {
namespace {

using Kind = Segment::Kind;

// A plan as data, so that several back ends take the same one.
struct Plan {
  std::vector<StreamKind> streams;
  int buffers = 0;
  std::vector<Task> tasks;  // without closures
};

Plan random_plan(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  Plan plan;
  plan.streams.assign(1 + below(2), StreamKind::compute);
  plan.streams.resize(plan.streams.size() + 1 + below(3), StreamKind::request);
  plan.buffers = 1 + below(5);
  std::vector<Content> contents(plan.buffers);
  std::vector<bool> was_read(plan.buffers);
  std::vector<StreamId> request_streams;
  for (int s = 0; s < static_cast<int>(plan.streams.size()); ++s) {
    if (plan.streams[s] == StreamKind::request) request_streams.push_back(StreamId{s});
  }
  const int count = 1 + below(40);
  for (int t = 0; t < count; ++t) {
    Task task{.name = fmt::format("t{}", t), .stream = StreamId{below(static_cast<int>(plan.streams.size()))}};
    for (int b = 0; b < plan.buffers; ++b) {
      const bool reads = contents[b] != 0 && below(3) == 0;
      const bool writes = (contents[b] == 0 || was_read[b] || reads) && below(3) == 0;
      if (reads) task.reads.push_back({BufferId{b}, contents[b]});
      if (writes) task.writes.push_back({BufferId{b}, contents[b] = content_of("random", t, b)});
      was_read[b] = writes ? false : was_read[b] || reads;
    }
    if (plan.streams[task.stream.value] == StreamKind::compute) {
      const int nested = below(4);
      std::vector<Segment> waits;
      for (int n = 0; n < nested; ++n) {
        task.nested.push_back({fmt::format("n{}", n), request_streams[random() % request_streams.size()]});
        task.segments.push_back({Kind::post, 0, n});
        waits.insert(waits.begin() + below(static_cast<int>(waits.size()) + 1), {Kind::wait, 0, n});
        if (below(2) == 0) {
          task.segments.push_back(waits.back());
          waits.pop_back();
        }
      }
      task.segments.insert(task.segments.end(), waits.begin(), waits.end());
    }
    plan.tasks.push_back(std::move(task));
  }
  return plan;
}

struct Simulation {
  const Plan& plan;
  std::vector<Content> memory;                    // plain on purpose
  std::vector<std::vector<std::string>> started;  // per stream, plain on purpose: one operation in flight
  std::atomic<int> wrong_reads = 0;
  Performer performer;

  Simulation(const Plan& the_plan, unsigned seed)
      : plan(the_plan), memory(plan.buffers), started(plan.streams.size()), performer(seed) {}

  void read(const Task& task) {
    for (const Claim& claim : task.reads) wrong_reads += memory[claim.buffer.value] != claim.content;
  }
  void write(const Task& task) {
    for (const Claim& claim : task.writes) memory[claim.buffer.value] = claim.content;
  }
  Work start(const Task& task) {
    started[task.stream.value].push_back(task.name);
    return performer.post([this, &task] {
      read(task);
      write(task);
    });
  }
  void body(const Task& task, TaskScope& scope) {
    started[task.stream.value].push_back(task.name);
    read(task);
    std::vector<int> results(task.nested.size());
    for (const Segment& segment : task.segments) {
      if (segment.kind == Kind::post) {
        scope.post([this, &task, &results, n = segment.nested] {
          started[task.nested[n].stream.value].push_back(task.name + task.nested[n].name);
          return performer.post([&results, n] { results[n] = 1; });
        });
      } else {
        scope.wait(segment.nested);
        wrong_reads += results[segment.nested] != 1;
      }
    }
    write(task);
  }
};

// Each stream's operations in submission order, nested ones at their reserved places.
std::vector<std::vector<std::string>> planned_order(const Plan& plan) {
  std::vector<std::vector<std::string>> order(plan.streams.size());
  for (const Task& task : plan.tasks) {
    order[task.stream.value].push_back(task.name);
    for (const NestedCollective& nested : task.nested) order[nested.stream.value].push_back(task.name + nested.name);
  }
  return order;
}

void add_all(Scheduler& scheduler, const Plan& plan) {
  for (const StreamKind kind : plan.streams) scheduler.add_stream("s", kind);
  for (int b = 0; b < plan.buffers; ++b) scheduler.add_buffer(fmt::format("b{}", b));
}

TEST(CpuSchedulerRandom, NeverViolatesAClaimNorAStreamsOrder) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const Plan plan = random_plan(random);
    Simulation run(plan, seed);
    CpuScheduler scheduler({.deadline = std::chrono::seconds(30), .record = true});
    add_all(scheduler, plan);
    for (const Task& planned : plan.tasks) {
      Task task = planned;
      if (plan.streams[task.stream.value] == StreamKind::compute) {
        task.body = [&run, &planned](TaskScope& scope) { run.body(planned, scope); };
      } else {
        task.start = [&run, &planned] { return run.start(planned); };
      }
      scheduler.submit(std::move(task));
    }
    scheduler.drain();
    ASSERT_EQ(run.wrong_reads, 0) << "seed " << seed;
    ASSERT_EQ(run.started, planned_order(plan)) << "seed " << seed;
    const auto records = scheduler.records();
    ASSERT_EQ(records.size(), plan.tasks.size());
    for (const TaskRecord& record : records) {
      for (const TaskId earlier : record.waits_for) {
        ASSERT_LE(records[earlier.value].end_us, record.begin_us) << "seed " << seed << " task " << record.name;
      }
    }
  }
}

TEST(CpuSchedulerRandom, WaitsForTheSameTasksAsTheVirtualClock) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    const Plan plan = random_plan(random);
    VirtualClock clock([&](const Task&, const Segment&) { return static_cast<double>(random() % 100); });
    CpuScheduler scheduler({.record = true});
    add_all(clock, plan);
    add_all(scheduler, plan);
    for (const Task& planned : plan.tasks) {
      clock.submit(planned);
      Task task = planned;
      if (plan.streams[task.stream.value] == StreamKind::compute) {
        task.body = [&planned](TaskScope& scope) {
          for (const Segment& segment : planned.segments) {
            segment.kind == Kind::post ? scope.post(Work::done) : scope.wait(segment.nested);
          }
        };
      } else {
        task.start = Work::done;
      }
      scheduler.submit(std::move(task));
    }
    scheduler.drain();
    const auto ran = scheduler.records();
    const auto modelled = clock.records();
    ASSERT_EQ(ran.size(), modelled.size());
    for (std::size_t t = 0; t < ran.size(); ++t) {
      ASSERT_EQ(ran[t].waits_for, modelled[t].waits_for);
      for (const TaskId earlier : modelled[t].waits_for) {
        ASSERT_LE(modelled[earlier.value].end_us, modelled[t].begin_us) << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace orthant::stream
