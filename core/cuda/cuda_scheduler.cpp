// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/cuda/cuda_scheduler.hpp>

#include <utility>

#include <orthant/core/cuda/cuda_engine.hpp>

namespace orthant::cuda {

CudaScheduler::CudaScheduler(Driver& driver, CudaSchedulerOptions options)
    : engine_(std::make_shared<detail::CudaEngine>(driver, std::move(options))),
      dispatcher_([engine = engine_] { engine->dispatch(); }) {}

CudaScheduler::~CudaScheduler() {
  engine_->close();
  dispatcher_.join();
}

stream::StreamId CudaScheduler::add_stream(std::string name, stream::StreamKind kind) {
  return engine_->add_stream(std::move(name), kind);
}
stream::BufferId CudaScheduler::add_buffer(std::string name) { return engine_->add_buffer(std::move(name)); }
stream::TaskId CudaScheduler::submit(stream::Task task) { return engine_->submit(std::move(task)); }
void CudaScheduler::wait(stream::TaskId id) { engine_->wait(id); }
void CudaScheduler::drain() { engine_->drain(); }
std::vector<stream::TaskRecord> CudaScheduler::records() const { return engine_->records(); }

}  // namespace orthant::cuda
