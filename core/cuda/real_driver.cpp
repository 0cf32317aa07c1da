// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/cuda/real_driver.hpp>

#include <cstdint>
#include <limits>

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/cuda/check.hpp>
#include <orthant/core/cuda/launch_rank_sum.hpp>

namespace orthant::cuda {
namespace {

cudaStream_t raw(DeviceStream stream) { return static_cast<cudaStream_t>(stream.raw); }
cudaEvent_t raw(Event event) { return static_cast<cudaEvent_t>(event.raw); }

}  // namespace

RealDriver::RealDriver(int device, std::chrono::milliseconds nccl_timeout)
    : device_(device), nccl_timeout_(nccl_timeout) {
  use_device();
  check(cudaDeviceGetStreamPriorityRange(nullptr, &high_priority_), "cudaDeviceGetStreamPriorityRange");
  // Scratch memory stays with the pool: by default it goes back to the system at every synchronisation.
  cudaMemPool_t pool = nullptr;
  check(cudaDeviceGetDefaultMemPool(&pool, device_), "cudaDeviceGetDefaultMemPool");
  std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "cudaMemPoolSetAttribute");
}

RealDriver::~RealDriver() {
  for (Group& group : groups_) abort({&group});
  cudaSetDevice(device_);
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  for (const cudaStream_t stream : streams_) cudaStreamDestroy(stream);
}

// The current device is a matter of the calling thread, and any thread may call.
void RealDriver::use_device() const { check(cudaSetDevice(device_), "cudaSetDevice"); }

// --- streams
// ------------------------------------------------------------------------------------------------------------

DeviceStream RealDriver::create_stream(Priority priority) {
  use_device();
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority == Priority::high ? high_priority_ : 0),
        "cudaStreamCreateWithPriority");
  const std::lock_guard guard(mutex_);
  streams_.push_back(stream);
  return {stream};
}

Event RealDriver::create_event() {
  use_device();
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  const std::lock_guard guard(mutex_);
  events_.push_back(event);
  return {event};
}

bool RealDriver::is_complete(Event event) {
  use_device();
  const cudaError_t state = cudaEventQuery(raw(event));
  if (state == cudaErrorNotReady) return false;
  check(state, "cudaEventQuery");
  return true;
}

void RealDriver::enqueue(DeviceStream stream, const Command& command) {
  use_device();
  std::visit([&](const auto& known) { perform(raw(stream), known); }, command);
}

void RealDriver::perform(cudaStream_t stream, const Record& command) {
  check(cudaEventRecord(raw(command.event), stream), "cudaEventRecord");
}

void RealDriver::perform(cudaStream_t stream, const WaitFor& command) {
  check(cudaStreamWaitEvent(stream, raw(command.event), 0), "cudaStreamWaitEvent");
}

void RealDriver::perform(cudaStream_t stream, const Copy& command) {
  if (command.bytes == 0) return;
  check(cudaMemcpyAsync(command.to, command.from, command.bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
}

void RealDriver::perform(cudaStream_t stream, const SumRows& command) {
  if (command.out.count == 0) return;
  if (!launch_rank_sum(command, stream)) throw InternalError("SumRows of types that it does not add");
  check(cudaGetLastError(), "sum_rows<<<>>>");
}

void RealDriver::with_stream(DeviceStream stream, const std::function<void()>& body) {
  const c10::cuda::CUDAStreamGuard guard(
      c10::cuda::getStreamFromExternal(raw(stream), static_cast<c10::DeviceIndex>(device_)));
  body();
}

DeviceStream RealDriver::current_stream() {
  return {c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device_)).stream()};
}

std::string RealDriver::device_identity() {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device_), "cudaGetDeviceProperties");
  return {properties.uuid.bytes, sizeof properties.uuid.bytes};
}

// --- memory
// -------------------------------------------------------------------------------------------------------------

void* RealDriver::allocate_pinned(std::size_t bytes) {
  use_device();
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault), "cudaHostAlloc");
  return memory;
}

void RealDriver::free_pinned(void* memory) noexcept { cudaFreeHost(memory); }

void* RealDriver::allocate_scratch(DeviceStream stream, std::size_t bytes) {
  use_device();
  void* memory = nullptr;
  check(cudaMallocAsync(&memory, bytes, raw(stream)), "cudaMallocAsync");
  return memory;
}

void RealDriver::free_scratch(DeviceStream stream, void* memory) noexcept {
  cudaSetDevice(device_);
  cudaFreeAsync(memory, raw(stream));
}

bool RealDriver::is_device(const void* memory) {
  use_device();
  cudaPointerAttributes attributes;
  check(cudaPointerGetAttributes(&attributes, memory), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

}  // namespace orthant::cuda
