// SPDX-License-Identifier: Apache-2.0
// CudaScheduler: streams are device streams, and one host thread, the dispatcher, puts tasks on them. A task is
// dispatched when all that it waits for is recorded (its event stands on a device stream), so the dispatcher runs ahead
// of the device and never waits for it; only operations that the host takes part in (StagedFabric) hold it up.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <orthant/core/cuda/driver.hpp>
#include <orthant/core/stream/scheduler.hpp>
#include <orthant/core/trace/tracer.hpp>

namespace orthant::cuda {
namespace detail {
class CudaEngine;
}

struct CudaSchedulerOptions {
  /// Longest time in which nothing at all finishes while somebody waits; then the scheduler fails with CommError.
  std::chrono::milliseconds deadline{600'000};
  /// A track per stream and a span per task and nested collective; may be null. Outlives the scheduler.
  trace::Tracer* tracer = nullptr;
  /// Keeps a TaskRecord per task for records(): memory then grows with the number of tasks.
  bool record = false;
  /// Called once, as soon as anything fails, before any wait() reports it, outside every lock: launch aborts the fabric
  /// here. Must not throw nor call this scheduler. Not called by the destructor.
  std::function<void(std::exception_ptr)> on_failure = {};
  /// Called now and then while somebody waits; what it throws fails the scheduler: launch calls DeviceFabric::check
  /// here.
  std::function<void()> check = {};
};

/// Bodies enqueue: they run on the dispatcher with their device stream current (Driver::with_stream), and what they put
/// there runs later. Host memory that they write is seen by later tasks; what they read from the device they
/// synchronise themselves. Scope::wait makes the device stream wait, not the host, unless the nested collective passes
/// through the host. A start()'s Work is complete when the operation is enqueued (NCCL) or, where the host takes part,
/// when its last command is. A task is complete when the device has passed its event; then its closures are destroyed,
/// before any wait() for it returns. Times in records and traces are those at which the host saw the device begin and
/// end; good to about 0.1 ms.
class CudaScheduler final : public stream::Scheduler {
 public:
  /// driver  outlives the scheduler.
  explicit CudaScheduler(Driver& driver, CudaSchedulerOptions options = {});
  /// Drops what is not on the device yet, and gives the device one second to finish the rest. After a failure abort the
  /// fabric before: a collective on the device, or a body that synchronises with one, would not end by itself.
  ~CudaScheduler() override;

  stream::StreamId add_stream(std::string name, stream::StreamKind kind) override;
  stream::BufferId add_buffer(std::string name) override;
  stream::TaskId submit(stream::Task task) override;
  void wait(stream::TaskId id) override;
  void drain() override;

  /// Finished tasks sorted by id, times since the scheduler was made; empty without options.record.
  std::vector<stream::TaskRecord> records() const;

 private:
  std::shared_ptr<detail::CudaEngine>
      engine_;  ///< shared with callbacks of operations in flight, which may outlive the scheduler
  std::thread dispatcher_;
};

}  // namespace orthant::cuda
