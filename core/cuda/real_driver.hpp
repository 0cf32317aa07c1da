// SPDX-License-Identifier: Apache-2.0
// RealDriver: the calls of the CUDA runtime and of NCCL. In the module only. NCCL communicators are non-blocking, so
// that every call of theirs has a deadline and abort() gets through from any thread.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <orthant/core/cuda/driver.hpp>

namespace orthant::cuda {

class RealDriver final : public Driver {
 public:
  RealDriver(int device, std::chrono::milliseconds nccl_timeout);
  /// Aborts communicators that are left; destroys streams and events.
  ~RealDriver() override;

  DeviceStream create_stream(Priority priority) override;
  Event create_event() override;
  void enqueue(DeviceStream stream, const Command& command) override;
  bool is_complete(Event event) override;
  void* allocate_pinned(std::size_t bytes) override;
  void free_pinned(void* memory) noexcept override;
  void* allocate_scratch(DeviceStream stream, std::size_t bytes) override;
  void free_scratch(DeviceStream stream, void* memory) noexcept override;
  bool is_device(const void* memory) override;
  UniqueId unique_id() override;
  Communicator init(const UniqueId& id, int rank, int size, const std::string& name) override;
  void abort(Communicator communicator) noexcept override;
  std::optional<std::string> async_error(Communicator communicator) override;
  void register_buffer(Communicator communicator, comm::Span buffer) override;
  void with_stream(DeviceStream stream, const std::function<void()>& body) override;
  DeviceStream current_stream() override;
  std::string device_identity() override;

 private:
  struct Group {
    std::mutex mutex;           ///< held during one call of NCCL at a time, none of which waits
    ncclComm_t comm = nullptr;  ///< null once aborted
  };
  void use_device() const;
  static Group& at(Communicator communicator) { return *static_cast<Group*>(communicator.raw); }
  /// Makes `call` with the communicator and waits until NCCL has taken it. Throws CommError with the call's name.
  template <class Call>
  void with_nccl(Communicator communicator, const char* name, const Call& call);
  void settle(Group& group, ncclResult_t result, const char* name);

  void perform(cudaStream_t stream, const Record& command);
  void perform(cudaStream_t stream, const WaitFor& command);
  void perform(cudaStream_t stream, const Copy& command);
  void perform(cudaStream_t stream, const SumRows& command);
  void perform(cudaStream_t stream, const AllGather& command);
  void perform(cudaStream_t stream, const ReduceScatter& command);
  void perform(cudaStream_t stream, const AllReduce& command);
  void perform(cudaStream_t stream, const Broadcast& command);
  void perform(cudaStream_t stream, const Exchange& command);

  const int device_;
  const std::chrono::milliseconds nccl_timeout_;
  int high_priority_ = 0;
  std::mutex mutex_;
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> events_;
  std::deque<Group> groups_;  ///< entries stay, so that a handle of an aborted one is still safe to use
};

}  // namespace orthant::cuda
