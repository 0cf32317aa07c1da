// SPDX-License-Identifier: Apache-2.0
// CpuScheduler: a thread per compute stream; a request stream is a queue of asynchronous operations without a thread,
// one in flight, started by whichever thread makes its head ready. No lock is held while a start(), a body or a
// callback runs, so ranks that are threads of one process may complete each other's works.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <orthant/core/stream/scheduler.hpp>
#include <orthant/core/trace/tracer.hpp>

namespace orthant::stream {
namespace detail {
class CpuEngine;
}

struct CpuSchedulerOptions {
  /// Longest time in which nothing at all finishes while somebody waits; then the scheduler fails with CommError.
  std::chrono::milliseconds deadline{600'000};
  /// A track per stream and a span per task and nested collective; may be null. Outlives the scheduler.
  trace::Tracer* tracer = nullptr;
  /// Keeps a TaskRecord per task for records(): memory then grows with the number of tasks.
  bool record = false;
  /// Called once, as soon as anything fails, before any wait() reports it, on the thread that saw it and outside every
  /// lock: launch aborts the fabric here. Must not throw nor call this scheduler. Not called by the destructor.
  std::function<void(std::exception_ptr)> on_failure = {};
  /// Called as each task finishes, under a lock: must be quick, not throw, and not call this scheduler.
  std::function<void()> on_finish = {};
};

/// A task's body and start are destroyed when it completes, before any wait() for it returns, and not earlier: what
/// they capture by value lives for as long as the operation may touch it, also after a failure and after the scheduler
/// itself is gone. The first failure is kept: tasks that have not begun are dropped, later calls rethrow it. All
/// members but add_stream may be called from any thread.
class CpuScheduler final : public Scheduler {
 public:
  explicit CpuScheduler(CpuSchedulerOptions options = {});
  /// Fails what is open, joins the threads, and never waits for a collective: a body that is blocked in its scope is
  /// thrown out of it. Operations in flight complete into nothing; to end those too, abort the fabric before.
  ~CpuScheduler() override;

  StreamId add_stream(std::string name, StreamKind kind) override;
  BufferId add_buffer(std::string name) override;
  TaskId submit(Task task) override;
  void wait(TaskId id) override;
  void drain() override;

  /// Finished tasks sorted by id, times since the scheduler was made; empty without options.record.
  std::vector<TaskRecord> records() const;

 private:
  std::shared_ptr<detail::CpuEngine> engine_;  ///< shared with callbacks of operations in flight: they may outlive this
  std::vector<std::thread> threads_;
};

}  // namespace orthant::stream
