// SPDX-License-Identifier: Apache-2.0
// The engine of CpuScheduler, apart from it because callbacks of operations in flight may outlive the scheduler. One
// mutex guards all of it; it is never held while a body, a start(), a work's callback, on_failure or a closure's
// destructor runs.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <orthant/core/stream/cpu_scheduler.hpp>
#include <orthant/core/stream/task_graph.hpp>
#include <orthant/core/trace/nvtx_range.hpp>

namespace orthant::stream::detail {

// An entry of a stream's queue: a task, or the place that is reserved for a collective which a task's body posts.
struct Operation {
  std::string name;
  StreamId stream;
  TaskId task;                           // nested: the task that posts it
  int nested = -1;                       // nested: index in the task
  std::function<void(TaskScope&)> body;  // on a compute stream
  std::function<Work()> start;           // on a request stream
  int unmet = 0;  // dependencies that have not finished; posting is a nested collective's only one
  bool running = false;
  bool finished = false;
  Clock::time_point begin;
  std::optional<trace::NvtxRange> range;

  // Tasks only.
  TaskRecord record;
  std::vector<Segment> segments;
  std::vector<TaskId> dependents;
  std::vector<std::shared_ptr<Operation>> collectives;
  int waits_for_nested = -1;  // while its body is in TaskScope::wait
};
using OperationPtr = std::shared_ptr<Operation>;

struct CpuStream {
  std::string name;
  StreamKind kind;
  trace::TrackId track;
  std::deque<OperationPtr> queue;
  std::condition_variable wake;  // compute: its thread, idle or in TaskScope::wait
};

class CpuEngine : public std::enable_shared_from_this<CpuEngine> {
 public:
  explicit CpuEngine(CpuSchedulerOptions options) : options_(std::move(options)) {}

  StreamId add_stream(std::string name, StreamKind kind);
  BufferId add_buffer(std::string name);
  TaskId submit(Task task);
  void wait(TaskId id);
  void drain();
  std::vector<TaskRecord> records() const;

  void run_compute(StreamId id);
  void close();

 private:
  using Lock = std::unique_lock<std::mutex>;
  class Scope;

  void enqueue(const OperationPtr& operation);
  void wake(StreamId id);
  void pump(Lock& lock);
  void start(const OperationPtr& operation);
  std::exception_ptr run_body(const OperationPtr& operation);
  void finish(const OperationPtr& operation, std::exception_ptr error) noexcept;
  void note_finished(Operation& operation);
  void fail(Lock& lock, std::exception_ptr error);
  void rethrow_failure(Lock& lock);
  template <class Done>
  void await(Lock& lock, std::condition_variable& changed, Done done);
  std::string describe() const;
  std::string describe(const Operation& head) const;

  CpuSchedulerOptions options_;
  const Clock::time_point origin_ = Clock::now();

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // for threads outside: a task finished, or the state below changed
  TaskGraph graph_;
  std::deque<CpuStream> streams_;                         // a deque: threads keep references while streams are added
  std::unordered_map<std::int64_t, OperationPtr> tasks_;  // unfinished tasks
  std::deque<StreamId> startable_;                        // request streams whose head may be ready
  bool pumping_ = false;
  bool failing_ = false;        // nothing new begins
  std::exception_ptr failure_;  // set once what was dropped is destroyed and the failure is reported
  Clock::time_point last_finish_ = origin_;
  std::vector<TaskRecord> records_;
};

}  // namespace orthant::stream::detail
