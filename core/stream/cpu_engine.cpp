// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/stream/cpu_engine.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/stream/segment_cursor.hpp>

namespace orthant::stream::detail {
namespace {

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

// --- submission ---

StreamId CpuEngine::add_stream(std::string name, StreamKind kind) {
  Lock lock(mutex_);
  const StreamId id = graph_.add_stream(name, kind);
  CpuStream& stream = streams_.emplace_back();
  stream.kind = kind;
  if (options_.tracer) stream.track = options_.tracer->add_track(name);
  stream.name = std::move(name);
  return id;
}

BufferId CpuEngine::add_buffer(std::string name) {
  Lock lock(mutex_);
  return graph_.add_buffer(std::move(name));
}

TaskId CpuEngine::submit(Task task) {
  if (!task.body && !task.start) throw InternalError(fmt::format("task '{}': has neither body nor start()", task.name));
  const auto operation = std::make_shared<Operation>();  // before the lock, so that it outlives it
  Lock lock(mutex_);
  if (failing_) rethrow_failure(lock);
  operation->record = graph_.admit(task);
  operation->task = operation->record.id;
  operation->name = std::move(task.name);
  operation->stream = task.stream;
  operation->body = std::move(task.body);
  operation->start = std::move(task.start);
  operation->segments = std::move(task.segments);
  for (const TaskId earlier : operation->record.waits_for) {
    const auto it = tasks_.find(earlier.value);
    if (it == tasks_.end() || it->second->stream == task.stream) continue;  // finished, or in order by the queue
    it->second->dependents.push_back(operation->task);
    ++operation->unmet;
  }
  tasks_.emplace(operation->task.value, operation);
  enqueue(operation);
  for (NestedCollective& collective : task.nested) {
    const auto nested = std::make_shared<Operation>();
    nested->name = std::move(collective.name);
    nested->stream = collective.stream;
    nested->task = operation->task;
    nested->nested = static_cast<int>(operation->collectives.size());
    nested->unmet = 1;
    operation->collectives.push_back(nested);
    enqueue(nested);
  }
  pump(lock);
  return operation->task;
}

void CpuEngine::enqueue(const OperationPtr& operation) {
  streams_[operation->stream.value].queue.push_back(operation);
  wake(operation->stream);
}

// Called whenever the head of a stream may have become ready; harmless when it has not.
void CpuEngine::wake(StreamId id) {
  CpuStream& stream = streams_[id.value];
  if (stream.queue.empty() || stream.queue.front()->unmet > 0 || stream.queue.front()->running) return;
  if (stream.kind == StreamKind::compute) {
    stream.wake.notify_one();
  } else {
    startable_.push_back(id);
  }
}

// --- execution ---

// Starts what is ready. One thread at a time: an operation that is complete as it starts, or that completes works of
// other ranks which complete ours, only adds to startable_ for the thread that is here already, so nothing recurses.
void CpuEngine::pump(Lock& lock) {
  if (pumping_) return;
  pumping_ = true;
  while (!failing_ && !startable_.empty()) {
    CpuStream& stream = streams_[startable_.front().value];
    startable_.pop_front();
    if (stream.queue.empty() || stream.queue.front()->unmet > 0 || stream.queue.front()->running) continue;
    OperationPtr operation = stream.queue.front();
    operation->running = true;
    operation->begin = Clock::now();
    lock.unlock();
    start(operation);
    operation.reset();  // perhaps the last owner: outside the lock
    lock.lock();
  }
  pumping_ = false;
  if (failing_) changed_.notify_all();  // the destructor may be waiting
}

void CpuEngine::start(const OperationPtr& operation) {
  try {
    operation->range.emplace(operation->name);
    operation->start().then([engine = shared_from_this(), operation](std::exception_ptr error) {
      engine->finish(operation, std::move(error));
    });
  } catch (...) {
    finish(operation, std::current_exception());
  }
}

class CpuEngine::Scope final : public TaskScope {
 public:
  Scope(CpuEngine& engine, Operation& task)
      : engine_(engine), task_(task), cursor_(task.name, std::move(task.segments)) {}

  void post(std::function<Work()> start) override {
    Operation& nested = *task_.collectives[cursor_.post()];
    Lock lock(engine_.mutex_);
    nested.start = std::move(start);
    --nested.unmet;
    engine_.wake(nested.stream);
    engine_.pump(lock);
  }

  void wait(int index) override {
    cursor_.wait(index);
    Lock lock(engine_.mutex_);
    task_.waits_for_nested = index;
    engine_.await(lock, engine_.streams_[task_.stream.value].wake, [&] { return task_.collectives[index]->finished; });
    task_.waits_for_nested = -1;
  }

  void finish() { cursor_.finish(); }

 private:
  CpuEngine& engine_;
  Operation& task_;
  SegmentCursor cursor_;
};

std::exception_ptr CpuEngine::run_body(const OperationPtr& operation) {
  try {
    const trace::NvtxRange range(operation->name);
    Scope scope(*this, *operation);
    operation->body(scope);
    scope.finish();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

void CpuEngine::run_compute(StreamId id) {
  Lock lock(mutex_);
  CpuStream& stream = streams_[id.value];
  for (;;) {
    stream.wake.wait(lock, [&] { return failing_ || (!stream.queue.empty() && stream.queue.front()->unmet == 0); });
    if (failing_) return;
    OperationPtr operation = stream.queue.front();
    operation->running = true;
    operation->begin = Clock::now();
    lock.unlock();
    finish(operation, run_body(operation));
    operation.reset();  // perhaps the last owner: outside the lock
    lock.lock();
  }
}

// Closures go first and outside the lock: whoever waits for the task finds the memory that they held released, and
// destroying them may run anything.
void CpuEngine::finish(const OperationPtr& operation, std::exception_ptr error) noexcept {
  operation->body = nullptr;
  operation->start = nullptr;
  operation->range.reset();
  Lock lock(mutex_);
  if (failing_) return;
  if (error) {
    fail(lock, std::move(error));
    return;
  }
  note_finished(*operation);
  streams_[operation->stream.value].queue.pop_front();
  if (operation->nested >= 0) {
    streams_[tasks_.at(operation->task.value)->stream.value].wake.notify_one();
  } else {
    for (const TaskId later : operation->dependents) {
      const OperationPtr& dependent = tasks_.at(later.value);
      if (--dependent->unmet == 0) wake(dependent->stream);
    }
    tasks_.erase(operation->task.value);
    changed_.notify_all();
  }
  wake(operation->stream);
  pump(lock);
}

void CpuEngine::note_finished(Operation& operation) {
  operation.finished = true;
  last_finish_ = Clock::now();
  if (options_.on_finish) options_.on_finish();
  if (options_.tracer) {
    options_.tracer->record({operation.name, streams_[operation.stream.value].track, operation.begin, last_finish_});
  }
  if (!options_.record) return;
  const auto since_origin_us = [&](Clock::time_point time) { return 1e6 * seconds(time - origin_); };
  if (operation.nested >= 0) {
    NestedRecord& record = tasks_.at(operation.task.value)->record.nested[operation.nested];
    record.begin_us = since_origin_us(operation.begin);
    record.end_us = since_origin_us(last_finish_);
  } else {
    operation.record.begin_us = since_origin_us(operation.begin);
    operation.record.end_us = since_origin_us(last_finish_);
    records_.push_back(std::move(operation.record));
  }
}

// --- waiting and failure ---

void CpuEngine::wait(TaskId id) {
  Lock lock(mutex_);
  invariant(id.value >= 0 && id.value < graph_.size(), "waits for a task that was never submitted");
  await(lock, changed_, [&] { return !tasks_.contains(id.value); });
}

void CpuEngine::drain() {
  Lock lock(mutex_);
  await(lock, changed_, [&] { return tasks_.empty(); });
}

template <class Done>
void CpuEngine::await(Lock& lock, std::condition_variable& changed, Done done) {
  const Clock::time_point from = Clock::now();
  while (!failing_ && !done()) {
    const Clock::time_point limit = std::max(last_finish_, from) + options_.deadline;
    if (Clock::now() < limit) {
      changed.wait_until(lock, limit);
    } else {
      fail(lock, std::make_exception_ptr(CommError(describe())));
    }
  }
  if (failing_) rethrow_failure(lock);
}

// Nothing new begins from here on. What has begun keeps its closures until it completes.
void CpuEngine::fail(Lock& lock, std::exception_ptr error) {
  if (std::exchange(failing_, true)) return;
  std::vector<OperationPtr> dropped;
  for (CpuStream& stream : streams_) {
    dropped.insert(dropped.end(), stream.queue.begin(), stream.queue.end());
    stream.queue.clear();
  }
  tasks_.clear();
  lock.unlock();
  dropped.clear();
  if (options_.on_failure) options_.on_failure(error);
  lock.lock();
  failure_ = std::move(error);
  changed_.notify_all();
  for (CpuStream& stream : streams_) stream.wake.notify_all();
}

void CpuEngine::rethrow_failure(Lock& lock) {
  changed_.wait(lock, [&] { return failure_ != nullptr; });
  std::rethrow_exception(failure_);
}

void CpuEngine::close() {
  Lock lock(mutex_);
  if (!failing_) options_.on_failure = nullptr;
  fail(lock, std::make_exception_ptr(CommError("the scheduler was destroyed while this task was open")));
  changed_.wait(lock, [&] { return failure_ != nullptr && !pumping_; });
}

std::string CpuEngine::describe() const {
  std::string text = fmt::format("nothing finished for {:.1f} s;", seconds(options_.deadline));
  for (const CpuStream& stream : streams_) {
    text +=
        fmt::format(" stream '{}': {};", stream.name, stream.queue.empty() ? "idle" : describe(*stream.queue.front()));
  }
  text.pop_back();
  return text;
}

std::string CpuEngine::describe(const Operation& head) const {
  if (head.running) {
    std::string text = fmt::format("'{}' runs since {:.1f} s", head.name, seconds(Clock::now() - head.begin));
    if (head.waits_for_nested >= 0)
      text += fmt::format(", waits for its '{}'", head.collectives[head.waits_for_nested]->name);
    return text;
  }
  if (head.nested >= 0 && head.unmet > 0) {
    return fmt::format("'{}' is to be posted by '{}'", head.name, tasks_.at(head.task.value)->name);
  }
  std::string text;
  for (const TaskId earlier : head.record.waits_for) {
    const auto it = tasks_.find(earlier.value);
    if (it != tasks_.end()) text += fmt::format("{} '{}'", text.empty() ? "" : ",", it->second->name);
  }
  return text.empty() ? fmt::format("'{}' is ready", head.name) : fmt::format("'{}' waits for{}", head.name, text);
}

std::vector<TaskRecord> CpuEngine::records() const {
  Lock lock(mutex_);
  std::vector<TaskRecord> sorted = records_;
  std::ranges::sort(sorted, {}, &TaskRecord::id);
  return sorted;
}

}  // namespace orthant::stream::detail
