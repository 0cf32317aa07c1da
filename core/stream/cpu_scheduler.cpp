// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/stream/cpu_scheduler.hpp>

#include <utility>

#include <orthant/core/stream/cpu_engine.hpp>

namespace orthant::stream {

CpuScheduler::CpuScheduler(CpuSchedulerOptions options)
    : engine_(std::make_shared<detail::CpuEngine>(std::move(options))) {}

CpuScheduler::~CpuScheduler() {
  engine_->close();
  for (std::thread& thread : threads_) thread.join();
}

StreamId CpuScheduler::add_stream(std::string name, StreamKind kind) {
  const StreamId id = engine_->add_stream(std::move(name), kind);
  if (kind == StreamKind::compute) threads_.emplace_back([engine = engine_, id] { engine->run_compute(id); });
  return id;
}

BufferId CpuScheduler::add_buffer(std::string name) { return engine_->add_buffer(std::move(name)); }
TaskId CpuScheduler::submit(Task task) { return engine_->submit(std::move(task)); }
void CpuScheduler::wait(TaskId id) { engine_->wait(id); }
void CpuScheduler::drain() { engine_->drain(); }
std::vector<TaskRecord> CpuScheduler::records() const { return engine_->records(); }

}  // namespace orthant::stream
