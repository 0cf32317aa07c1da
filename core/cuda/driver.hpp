// SPDX-License-Identifier: Apache-2.0
// Driver: the few things that Orthant asks of CUDA and NCCL, for one device. RealDriver (in the module) makes the
// calls, RecordingDriver (tests) writes them down and plays the device. Streams, events and communicators belong to the
// driver and live as long as it does; all members may be called from any thread. Failing CUDA calls throw
// InternalError, failing NCCL calls CommError, both with the name of the call.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include <orthant/core/cuda/command.hpp>

namespace orthant::cuda {

enum class Priority : std::uint8_t { normal, high };

class StreamDriver {
 public:
  virtual ~StreamDriver() = default;
  virtual DeviceStream create_stream(Priority priority) = 0;
  virtual Event create_event() = 0;
  /// Puts the command on the stream; does not wait for it.
  virtual void enqueue(DeviceStream stream, const Command& command) = 0;
  /// Whether the device has passed the event's last Record. Throws what went wrong on the device.
  virtual bool is_complete(Event event) = 0;
};

class MemoryDriver {
 public:
  virtual ~MemoryDriver() = default;
  virtual void* allocate_pinned(std::size_t bytes) = 0;
  virtual void free_pinned(void* memory) noexcept = 0;
  /// Device memory in stream order: it may be freed as soon as its last use is enqueued. Never stops the device, as
  /// cudaFree does, which deadlocks ranks that wait for each other's collectives.
  virtual void* allocate_scratch(DeviceStream stream, std::size_t bytes) = 0;
  virtual void free_scratch(DeviceStream stream, void* memory) noexcept = 0;
  virtual bool is_device(const void* memory) = 0;
};

using UniqueId = std::array<std::byte, 128>;

class NcclDriver {
 public:
  virtual ~NcclDriver() = default;
  virtual UniqueId unique_id() = 0;
  /// Collective over the `size` ranks that pass the same id.
  virtual Communicator init(const UniqueId& id, int rank, int size, const std::string& name) = 0;
  /// Ends what is running on the communicator and frees it; local, not a collective. A second call does nothing.
  virtual void abort(Communicator communicator) noexcept = 0;
  /// What went wrong since init(), here or at a peer.
  virtual std::optional<std::string> async_error(Communicator communicator) = 0;
  /// Lets NCCL move the memory without copies of its own, until the communicator ends.
  virtual void register_buffer(Communicator communicator, comm::Span buffer) = 0;
};

class Driver : public StreamDriver, public MemoryDriver, public NcclDriver {
 public:
  /// Calls `body` with `stream` as LibTorch's current stream of this thread. That is where ATen enqueues, and where a
  /// backward pass runs too, although it does so on autograd's device thread: autograd takes the stream on which the
  /// forward ran.
  virtual void with_stream(DeviceStream stream, const std::function<void()>& body) = 0;
  /// The innermost with_stream() of this thread; null outside.
  virtual DeviceStream current_stream() = 0;
  /// The same for two ranks only if they share the device.
  virtual std::string device_identity() = 0;
};

}  // namespace orthant::cuda
