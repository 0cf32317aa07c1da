// SPDX-License-Identifier: Apache-2.0
// What is put on a device stream, as data: a driver carries it out (CUDA and NCCL) or writes it down (tests). Handles
// are opaque, so that everything above the driver builds and is tested without CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include <orthant/core/comm/collectives.hpp>

namespace orthant::cuda {

template <class Tag>
struct Handle {
  void* raw = nullptr;
  explicit operator bool() const { return raw != nullptr; }
  friend bool operator==(Handle, Handle) = default;
};
using DeviceStream = Handle<struct DeviceStreamTag>;  ///< null: the default stream
using Event = Handle<struct EventTag>;
using Communicator = Handle<struct CommunicatorTag>;

struct Record {
  Event event;
};
/// Later commands wait for what the event's last Record stands behind. CUDA ignores it, silently, if there was no
/// Record yet.
struct WaitFor {
  Event event;
};
/// Between any two of pageable, pinned and device memory.
struct Copy {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 0;
};
/// out = sum of `rows` rows, added in order as comm::reduce_rows does, bit for bit.
/// in  rows * out.count elements, one row after the other: bf16, fp32 or fp64; out of the same type, or fp32 for bf16.
struct SumRows {
  comm::ConstSpan in;
  int rows = 0;
  comm::Span out;
  comm::Into into = comm::Into::replace;
};
struct AllGather {
  Communicator communicator;
  comm::ConstSpan shard;
  comm::Span full;
};
struct ReduceScatter {
  Communicator communicator;
  comm::ConstSpan full;
  comm::Span shard;
};
struct AllReduce {
  Communicator communicator;
  comm::Span data;
  comm::Reduction op = comm::Reduction::sum;
};
struct Broadcast {
  Communicator communicator;
  comm::Span data;
  int root = 0;
};
/// A span without data: nothing goes in that direction.
struct Transfer {
  int peer = 0;
  comm::ConstSpan send;
  comm::Span receive;
};
/// All transfers at once (one NCCL group), so that their order does not matter.
struct Exchange {
  Communicator communicator;
  std::vector<Transfer> transfers;
};

using Command = std::variant<Record, WaitFor, Copy, SumRows, AllGather, ReduceScatter, AllReduce, Broadcast, Exchange>;

}  // namespace orthant::cuda
