// SPDX-License-Identifier: Apache-2.0
// The half of the engine that any thread may call; cuda_dispatcher.cpp is the other.
#include <orthant/core/cuda/cuda_engine.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>

namespace orthant::cuda::detail {
namespace {

constexpr std::chrono::milliseconds kCheck{100};  // between looks at the communicators while somebody waits

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

// --- submission
// ---------------------------------------------------------------------------------------------------------

CudaEngine::CudaEngine(Driver& driver, CudaSchedulerOptions options)
    : driver_(driver), events_(driver), options_(std::move(options)) {}

StreamId CudaEngine::add_stream(std::string name, StreamKind kind) {
  // Collectives first: what waits for them is longer than what they keep from the multiprocessors.
  const DeviceStream stream = driver_.create_stream(kind == StreamKind::request ? Priority::high : Priority::normal);
  const Lock lock(mutex_);
  const StreamId id = graph_.add_stream(name, kind);
  DeviceQueue& queue = streams_.emplace_back();
  queue.kind = kind;
  queue.stream = stream;
  if (options_.tracer) queue.track = options_.tracer->add_track(name);
  queue.name = std::move(name);
  return id;
}

stream::BufferId CudaEngine::add_buffer(std::string name) {
  const Lock lock(mutex_);
  return graph_.add_buffer(std::move(name));
}

TaskId CudaEngine::submit(stream::Task task) {
  if (!task.body && !task.start) throw InternalError(fmt::format("task '{}': has neither body nor start()", task.name));
  const auto operation =
      std::make_shared<Operation>();  // before the lock: should it be dropped, it is destroyed after it
  Lock lock(mutex_);
  if (failing_) rethrow_failure(lock);
  operation->record = graph_.admit(task);
  operation->task = operation->record.id;
  operation->stream = task.stream;
  operation->body = std::move(task.body);
  operation->start = std::move(task.start);
  operation->segments = stream::SegmentCursor(task.name, std::move(task.segments));
  operation->name = std::move(task.name);
  for (const TaskId earlier : operation->record.waits_for) {
    const auto it = tasks_.find(earlier.value);
    if (it != tasks_.end() && it->second->stream != task.stream) operation->waits_for.push_back(it->second);
  }
  tasks_.emplace(operation->task.value, operation);
  submitted_.push_back(operation);
  for (stream::NestedCollective& collective : task.nested) {
    const auto nested = std::make_shared<Operation>();
    nested->name = std::move(collective.name);
    nested->stream = collective.stream;
    nested->task = operation->task;
    nested->nested = static_cast<int>(operation->collectives.size());
    operation->collectives.push_back(nested);
    submitted_.push_back(nested);
  }
  news_.notify_one();
  return operation->task;
}

void CudaEngine::note_finished(DeviceQueue& queue, Operation& operation) {
  last_finish_ = Clock::now();
  // It has stood on the device since it was dispatched, and run since its predecessor ended.
  const Clock::time_point begin = std::max(operation.begin, queue.last_end);
  queue.last_end = last_finish_;
  if (options_.tracer) options_.tracer->record({operation.name, queue.track, begin, last_finish_});
  if (!options_.record) return;
  const auto since_origin_us = [&](Clock::time_point time) { return 1e6 * seconds(time - origin_); };
  if (operation.nested >= 0) {
    const auto task = tasks_.find(operation.task.value);
    if (task == tasks_.end()) return;  // after a failure
    stream::NestedRecord& nested = task->second->record.nested[operation.nested];
    nested.begin_us = since_origin_us(begin);
    nested.end_us = since_origin_us(last_finish_);
  } else {
    operation.record.begin_us = since_origin_us(begin);
    operation.record.end_us = since_origin_us(last_finish_);
    records_.push_back(std::move(operation.record));
  }
}

// --- waiting and failure
// ------------------------------------------------------------------------------------------------

void CudaEngine::wait(TaskId id) {
  Lock lock(mutex_);
  invariant(id.value >= 0 && id.value < graph_.size(), "waits for a task that was never submitted");
  await(lock, [&] { return !tasks_.contains(id.value); });
}

void CudaEngine::drain() {
  Lock lock(mutex_);
  await(lock, [&] { return tasks_.empty(); });
}

template <class Done>
void CudaEngine::await(Lock& lock, Done done) {
  const Clock::time_point from = Clock::now();
  while (!failing_ && !done()) {
    if (changed_.wait_for(lock, std::min(kCheck, options_.deadline)) == std::cv_status::no_timeout) continue;
    std::exception_ptr error;
    if (Clock::now() > std::max(last_finish_, from) + options_.deadline) {
      error = std::make_exception_ptr(CommError(describe()));
    }
    lock.unlock();
    try {
      if (options_.check) options_.check();
    } catch (...) {
      error = std::current_exception();
    }
    if (error) fail(error, true);
    lock.lock();
  }
  if (failing_) rethrow_failure(lock);
}

bool CudaEngine::failing() const {
  const Lock lock(mutex_);
  return failing_;
}

void CudaEngine::fail(std::exception_ptr error, bool report) noexcept {
  Lock lock(mutex_);
  if (std::exchange(failing_, true)) return;
  auto tasks = std::exchange(tasks_, {});
  auto submitted = std::exchange(submitted_, {});
  lock.unlock();
  tasks.clear();
  submitted.clear();
  if (report && options_.on_failure) options_.on_failure(error);
  lock.lock();
  failure_ = std::move(error);
  changed_.notify_all();
  news_.notify_all();
}

void CudaEngine::rethrow_failure(Lock& lock) {
  changed_.wait(lock, [&] { return failure_ != nullptr; });
  std::rethrow_exception(failure_);
}

void CudaEngine::close() {
  fail(std::make_exception_ptr(CommError("the scheduler was destroyed while this task was open")), false);
  const Lock lock(mutex_);
  closing_ = true;
  news_.notify_all();
}

std::string CudaEngine::describe() const {
  std::string text = fmt::format("nothing finished for {:.1f} s;", seconds(options_.deadline));
  for (const DeviceQueue& queue : streams_) {
    const auto head = std::ranges::find_if(
        tasks_, [&](const auto& entry) { return &streams_[entry.second->stream.value] == &queue; });
    text += fmt::format(" stream '{}': {};", queue.name, head == tasks_.end() ? "idle" : describe(*head->second));
  }
  text.pop_back();
  return text;
}

std::string CudaEngine::describe(const Operation& head) const {
  switch (head.state) {
    case State::running:
      return fmt::format("'{}' has begun on the host", head.name);
    case State::recorded:
      return fmt::format("'{}' is on the device", head.name);
    case State::submitted:
    case State::complete:
      break;
  }
  std::string text;
  for (const TaskId earlier : head.record.waits_for) {
    const auto it = tasks_.find(earlier.value);
    if (it != tasks_.end()) text += fmt::format("{} '{}'", text.empty() ? "" : ",", it->second->name);
  }
  return text.empty() ? fmt::format("'{}' is ready", head.name) : fmt::format("'{}' waits for{}", head.name, text);
}

std::vector<stream::TaskRecord> CudaEngine::records() const {
  const Lock lock(mutex_);
  std::vector<stream::TaskRecord> sorted = records_;
  std::ranges::sort(sorted, {}, &stream::TaskRecord::id);
  return sorted;
}

}  // namespace orthant::cuda::detail
