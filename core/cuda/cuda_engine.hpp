// SPDX-License-Identifier: Apache-2.0
// The engine of CudaScheduler. Two halves: what other threads touch, under one mutex, and what only the dispatcher
// touches, without. The mutex is never held while a body, a start(), a closure's destructor or the driver runs (a full
// device queue blocks its caller, and submit() must not).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <orthant/core/cuda/cuda_scheduler.hpp>
#include <orthant/core/cuda/event_pool.hpp>
#include <orthant/core/stream/segment_cursor.hpp>
#include <orthant/core/stream/task_graph.hpp>

namespace orthant::cuda::detail {

using stream::Clock;
using stream::StreamId;
using stream::StreamKind;
using stream::TaskId;

enum class State : std::uint8_t {
  submitted,
  running,   ///< its body or start() was called; an operation of the host may be under way
  recorded,  ///< all of it stands on the device stream, and its event behind it: others may be made to wait for it
  complete,  ///< the device has passed the event
};

/// A task, or the place that is reserved for a collective which a task's body posts.
struct Operation {
  std::string name;
  StreamId stream;
  TaskId task;      // nested: the task that posts it
  int nested = -1;  // nested: index in the task
  std::atomic<State> state = State::submitted;
  stream::TaskRecord record;  // tasks only

  // The dispatcher's, once submitted.
  std::function<void(stream::TaskScope&)> body;
  std::function<stream::Work()> start;                // nested: set when it is posted
  std::vector<std::shared_ptr<Operation>> waits_for;  // on other streams, unfinished at submission
  stream::SegmentCursor segments;
  std::vector<std::shared_ptr<Operation>> collectives;
  Event posted;  // nested: stands where the body posted it
  Event event;
  Clock::time_point begin;
};
using OperationPtr = std::shared_ptr<Operation>;

struct DeviceQueue {
  std::string name;
  StreamKind kind;
  DeviceStream stream;
  trace::TrackId track;

  // The dispatcher's.
  std::deque<OperationPtr> places;    // request streams: not recorded yet, in the reserved order
  std::deque<OperationPtr> recorded;  // not complete yet
  Clock::time_point last_end;
};

class CudaEngine : public std::enable_shared_from_this<CudaEngine> {
 public:
  CudaEngine(Driver& driver, CudaSchedulerOptions options);

  StreamId add_stream(std::string name, StreamKind kind);
  stream::BufferId add_buffer(std::string name);
  TaskId submit(stream::Task task);
  void wait(TaskId id);
  void drain();
  std::vector<stream::TaskRecord> records() const;

  void dispatch();  // the dispatcher's life
  void close();

 private:
  using Lock = std::unique_lock<std::mutex>;
  class Scope;
  enum class Among : std::uint8_t { all, requests };

  // On the dispatcher.
  void take_news();
  bool start_next(Among among);
  bool is_ready(const Operation& operation, bool is_first_compute) const;
  void start(const OperationPtr& operation);
  void run_body(Operation& operation);
  void run_start(const OperationPtr& operation);
  void record(const OperationPtr& operation);
  bool collect();
  bool collect(DeviceQueue& queue);
  void finish(DeviceQueue& queue, Operation& operation);
  bool is_device_idle() const;
  void rest();
  void leave();
  DeviceQueue& queue_of(const Operation& operation) const { return *queues_[operation.stream.value]; }

  // Any thread.
  bool failing() const;
  void fail(std::exception_ptr error, bool report) noexcept;
  void rethrow_failure(Lock& lock);
  template <class Done>
  void await(Lock& lock, Done done);
  void note_finished(DeviceQueue& queue, Operation& operation);
  std::string describe() const;
  std::string describe(const Operation& head) const;

  Driver& driver_;
  EventPool events_;
  const CudaSchedulerOptions options_;
  const Clock::time_point origin_ = Clock::now();

  // The dispatcher's.
  std::vector<DeviceQueue*> queues_;
  std::list<OperationPtr> pending_;  // not dispatched, tasks and nested places, in submission order

  mutable std::mutex mutex_;
  std::condition_variable news_;     // for the dispatcher
  std::condition_variable changed_;  // for threads that wait
  stream::TaskGraph graph_;
  std::deque<DeviceQueue> streams_;             // a deque: the dispatcher keeps pointers while streams are added
  std::map<std::int64_t, OperationPtr> tasks_;  // unfinished tasks
  std::vector<OperationPtr> submitted_;         // for the dispatcher to take
  std::vector<std::pair<OperationPtr, std::exception_ptr>> started_;  // their Work is complete; likewise
  bool failing_ = false;                                              // nothing new begins
  bool closing_ = false;
  std::exception_ptr failure_;  // set once the failure is reported
  Clock::time_point last_finish_ = origin_;
  std::vector<stream::TaskRecord> records_;
};

}  // namespace orthant::cuda::detail
