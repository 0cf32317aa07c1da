// SPDX-License-Identifier: Apache-2.0
// The half of the engine that runs on the dispatcher.
#include <orthant/core/cuda/cuda_engine.hpp>

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/trace/nvtx_range.hpp>

namespace orthant::cuda::detail {
namespace {

constexpr std::chrono::microseconds kPoll{50};           // between looks at the device's events
constexpr std::chrono::milliseconds kLastChance{1'000};  // for the device to finish when the scheduler ends

}  // namespace

void CudaEngine::dispatch() {
  while (!failing()) {
    try {
      take_news();
      const bool started = start_next(Among::all);
      if (!collect() && !started) rest();
    } catch (...) {
      fail(std::current_exception(), true);
    }
  }
  leave();
}

void CudaEngine::take_news() {
  Lock lock(mutex_);
  const auto submitted = std::exchange(submitted_, {});
  const auto started = std::exchange(started_, {});
  while (queues_.size() < streams_.size()) queues_.push_back(&streams_[queues_.size()]);
  lock.unlock();
  for (const OperationPtr& operation : submitted) {
    pending_.push_back(operation);
    if (queue_of(*operation).kind == StreamKind::request) queue_of(*operation).places.push_back(operation);
  }
  for (const auto& [operation, error] : started) {
    if (error) std::rethrow_exception(error);
    queue_of(*operation).places.pop_front();
    record(operation);
  }
}

// In submission order wherever possible: as long as no operation passes through the host the first is always ready, so
// all ranks put their collectives on the device in the same order, whatever their timing.
bool CudaEngine::start_next(Among among) {
  bool is_first_compute = among == Among::all;
  for (auto it = pending_.begin(); it != pending_.end(); ++it) {
    if (is_ready(**it, is_first_compute)) {
      const OperationPtr operation = *it;
      pending_.erase(it);
      start(operation);
      return true;
    }
    if (queue_of(**it).kind == StreamKind::compute) is_first_compute = false;
  }
  return false;
}

// Bodies run in submission order over all streams: while one waits in its scope, all earlier bodies have run, and of
// what it may be waiting for only requests are left, which the dispatcher goes on with. So one thread is enough.
bool CudaEngine::is_ready(const Operation& operation, bool is_first_compute) const {
  const DeviceQueue& queue = queue_of(operation);
  if (queue.kind == StreamKind::compute) {
    if (!is_first_compute) return false;
  } else if (queue.places.front().get() != &operation ||
             !operation.start) {  // a nested one has no start() before it is posted
    return false;
  }
  return std::ranges::all_of(operation.waits_for,
                             [](const OperationPtr& earlier) { return earlier->state >= State::recorded; });
}

void CudaEngine::start(const OperationPtr& operation) {
  DeviceQueue& queue = queue_of(*operation);
  for (const OperationPtr& earlier : operation->waits_for) {
    if (earlier->state == State::recorded) driver_.enqueue(queue.stream, WaitFor{earlier->event});
  }
  operation->waits_for.clear();
  if (operation->posted) {
    driver_.enqueue(queue.stream, WaitFor{operation->posted});
    events_.give_back(operation->posted);
  }
  operation->state = State::running;
  operation->begin = Clock::now();
  const trace::NvtxRange range(operation->name);
  driver_.with_stream(queue.stream, [&] {
    if (queue.kind == StreamKind::compute) {
      run_body(*operation);
    } else {
      run_start(operation);
    }
  });
  if (queue.kind == StreamKind::compute) {
    record(operation);
  } else {
    take_news();  // the Work may be complete by now; recorded at once, those that wait for it keep their order
  }
}

class CudaEngine::Scope final : public stream::TaskScope {
 public:
  Scope(CudaEngine& engine, Operation& task) : engine_(engine), task_(task) {}

  void post(std::function<stream::Work()> start) override {
    Operation& nested = *task_.collectives[task_.segments.post()];
    nested.posted = engine_.events_.take();
    engine_.driver_.enqueue(engine_.queue_of(task_).stream, Record{nested.posted});
    nested.start = std::move(start);
    while (engine_.start_next(Among::requests)) {
    }
  }

  void wait(int index) override {
    task_.segments.wait(index);
    Operation& nested = *task_.collectives[index];
    while (nested.state < State::recorded) {
      if (engine_.failing()) throw CommError(fmt::format("'{}' ends before its '{}'", task_.name, nested.name));
      engine_.take_news();
      const bool started = engine_.start_next(Among::requests);
      if (!engine_.collect() && !started && nested.state < State::recorded) engine_.rest();
    }
    if (nested.state == State::recorded) engine_.driver_.enqueue(engine_.queue_of(task_).stream, WaitFor{nested.event});
  }

 private:
  CudaEngine& engine_;
  Operation& task_;
};

void CudaEngine::run_body(Operation& operation) {
  Scope scope(*this, operation);
  operation.body(scope);
  operation.segments.finish();
}

void CudaEngine::run_start(const OperationPtr& operation) {
  operation->start().then([engine = shared_from_this(), operation](std::exception_ptr error) {
    const Lock lock(engine->mutex_);
    engine->started_.emplace_back(operation, std::move(error));
    engine->news_.notify_one();
  });
}

void CudaEngine::record(const OperationPtr& operation) {
  DeviceQueue& queue = queue_of(*operation);
  operation->event = events_.take();
  driver_.enqueue(queue.stream, Record{operation->event});
  queue.recorded.push_back(operation);
  operation->state = State::recorded;
}

bool CudaEngine::collect() {
  bool any = false;
  for (DeviceQueue* queue : queues_) any |= collect(*queue);
  return any;
}

bool CudaEngine::collect(DeviceQueue& queue) {
  bool any = false;
  while (!queue.recorded.empty() && driver_.is_complete(queue.recorded.front()->event)) {
    const OperationPtr operation = std::move(queue.recorded.front());
    queue.recorded.pop_front();
    finish(queue, *operation);
    any = true;
  }
  return any;
}

// Closures go first and outside the lock: whoever waits for the task finds the memory that they held released.
void CudaEngine::finish(DeviceQueue& queue, Operation& operation) {
  for (const OperationPtr& nested : operation.collectives)
    collect(queue_of(*nested));  // complete, but perhaps not seen yet
  operation.body = nullptr;
  operation.start = nullptr;
  events_.give_back(operation.event);
  operation.state = State::complete;
  const Lock lock(mutex_);
  note_finished(queue, operation);
  if (operation.nested >= 0) return;
  tasks_.erase(operation.task.value);
  changed_.notify_all();
}

void CudaEngine::rest() {
  Lock lock(mutex_);
  const auto news = [&] { return failing_ || !submitted_.empty() || !started_.empty(); };
  if (is_device_idle()) {
    news_.wait(lock, news);
  } else {
    news_.wait_for(lock, kPoll, news);
  }
}

// What stands on the device keeps its closures until the device has passed it, or the scheduler ends and cannot wait
// any longer.
void CudaEngine::leave() {
  pending_.clear();
  for (DeviceQueue* queue : queues_) queue->places.clear();
  std::optional<Clock::time_point> limit;
  for (;;) {
    bool idle = true;
    try {
      collect();
      idle = is_device_idle();
    } catch (...) {  // the device is lost: nothing runs there any more
    }
    Lock lock(mutex_);
    if (closing_ && !limit) limit = Clock::now() + kLastChance;
    if (closing_ && (idle || Clock::now() > *limit)) break;
    if (idle) {
      news_.wait(lock, [&] { return closing_; });
    } else {
      news_.wait_for(lock, kPoll);
    }
  }
  for (DeviceQueue* queue : queues_) queue->recorded.clear();
}

bool CudaEngine::is_device_idle() const {
  return std::ranges::all_of(queues_, [](const DeviceQueue* queue) { return queue->recorded.empty(); });
}

}  // namespace orthant::cuda::detail
