// SPDX-License-Identifier: Apache-2.0
// The half of RealDriver that calls NCCL.
#include <orthant/core/cuda/real_driver.hpp>

#include <cstring>
#include <thread>
#include <utility>

#include <orthant/core/base/error.hpp>

namespace orthant::cuda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kPoll{100};

[[noreturn]] void fail(const char* call, const std::string& why) { throw CommError(std::string(call) + ": " + why); }

std::string describe(ncclResult_t result) {
  std::string text = ncclGetErrorString(result);
  const char* detail = ncclGetLastError(nullptr);
  if (detail && *detail) text += std::string(" (") + detail + ")";
  return text;
}

ncclDataType_t nccl_type(DType type) {
  switch (type) {
    case DType::u8:
      return ncclUint8;
    case DType::i64:
      return ncclInt64;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f32:
      return ncclFloat32;
    case DType::f64:
      return ncclFloat64;
  }
  throw InternalError("a type that NCCL does not know");
}

ncclRedOp_t nccl_op(comm::Reduction op) {
  switch (op) {
    case comm::Reduction::sum:
      return ncclSum;
    case comm::Reduction::max:
      return ncclMax;
    case comm::Reduction::min:
      return ncclMin;
  }
  throw InternalError("a reduction that NCCL does not know");
}

std::size_t count_of(comm::ConstSpan span) { return static_cast<std::size_t>(span.count); }

ncclResult_t exchange(const std::vector<Transfer>& transfers, ncclComm_t comm, cudaStream_t stream) {
  ncclResult_t first = ncclGroupStart();
  const auto add = [&](ncclResult_t result) {
    if (first == ncclSuccess && result != ncclInProgress) first = result;
  };
  for (const auto& [peer, send, receive] : transfers) {
    if (send.data) add(ncclSend(send.data, count_of(send), nccl_type(send.type), peer, comm, stream));
    if (receive.data) add(ncclRecv(receive.data, count_of(receive), nccl_type(receive.type), peer, comm, stream));
  }
  const ncclResult_t end = ncclGroupEnd();  // also after an error, else this thread stays in the group
  return first == ncclSuccess ? end : first;
}

}  // namespace

void RealDriver::settle(Group& group, ncclResult_t result, const char* name) {
  const auto limit = Clock::now() + nccl_timeout_;
  while (result == ncclInProgress) {
    if (Clock::now() > limit) {
      abort({&group});
      fail(name, "not done within " + std::to_string(nccl_timeout_.count()) + " ms");
    }
    std::this_thread::sleep_for(kPoll);
    const std::lock_guard guard(group.mutex);
    if (!group.comm) fail(name, "the communicator was aborted");
    const ncclResult_t asked = ncclCommGetAsyncError(group.comm, &result);
    if (asked != ncclSuccess) result = asked;
  }
  if (result != ncclSuccess) fail(name, describe(result));
}

template <class Call>
void RealDriver::with_nccl(Communicator communicator, const char* name, const Call& call) {
  Group& group = at(communicator);
  std::unique_lock lock(group.mutex);
  if (!group.comm) fail(name, "the communicator was aborted");
  const ncclResult_t result = call(group.comm);
  lock.unlock();
  settle(group, result, name);
}

UniqueId RealDriver::unique_id() {
  use_device();
  ncclUniqueId id;
  const ncclResult_t result = ncclGetUniqueId(&id);
  if (result != ncclSuccess) fail("ncclGetUniqueId", describe(result));
  UniqueId bytes;
  static_assert(sizeof bytes == sizeof id);
  std::memcpy(bytes.data(), &id, sizeof id);
  return bytes;
}

Communicator RealDriver::init(const UniqueId& bytes, int rank, int size, const std::string& name) {
  use_device();
  ncclUniqueId id;
  std::memcpy(&id, bytes.data(), sizeof id);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = name.c_str();
  std::unique_lock lock(mutex_);
  Group& group = groups_.emplace_back();
  lock.unlock();
  std::unique_lock group_lock(group.mutex);
  const ncclResult_t result = ncclCommInitRankConfig(&group.comm, size, id, rank, &config);
  group_lock.unlock();
  settle(group, result, "ncclCommInitRankConfig");
  return {&group};
}

void RealDriver::abort(Communicator communicator) noexcept {
  Group& group = at(communicator);
  const std::lock_guard guard(group.mutex);
  cudaSetDevice(device_);
  if (group.comm) ncclCommAbort(std::exchange(group.comm, nullptr));
}

std::optional<std::string> RealDriver::async_error(Communicator communicator) {
  Group& group = at(communicator);
  const std::lock_guard guard(group.mutex);
  if (!group.comm) return std::nullopt;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(group.comm, &state);
  if (asked != ncclSuccess) return "ncclCommGetAsyncError: " + describe(asked);
  if (state == ncclSuccess || state == ncclInProgress) return std::nullopt;
  return "NCCL reports: " + describe(state);
}

void RealDriver::register_buffer(Communicator communicator, comm::Span buffer) {
  use_device();
  void* handle = nullptr;  // freed with the communicator
  with_nccl(communicator, "ncclCommRegister",
            [&](ncclComm_t comm) { return ncclCommRegister(comm, buffer.data, buffer.bytes(), &handle); });
}

void RealDriver::perform(cudaStream_t stream, const AllGather& command) {
  with_nccl(command.communicator, "ncclAllGather", [&](ncclComm_t comm) {
    const auto& shard = command.shard;
    return ncclAllGather(shard.data, command.full.data, count_of(shard), nccl_type(shard.type), comm, stream);
  });
}

void RealDriver::perform(cudaStream_t stream, const ReduceScatter& command) {
  with_nccl(command.communicator, "ncclReduceScatter", [&](ncclComm_t comm) {
    const auto& shard = command.shard;
    return ncclReduceScatter(command.full.data, shard.data, count_of(shard), nccl_type(shard.type), ncclSum, comm,
                             stream);
  });
}

void RealDriver::perform(cudaStream_t stream, const AllReduce& command) {
  with_nccl(command.communicator, "ncclAllReduce", [&](ncclComm_t comm) {
    const auto& data = command.data;
    return ncclAllReduce(data.data, data.data, count_of(data), nccl_type(data.type), nccl_op(command.op), comm, stream);
  });
}

void RealDriver::perform(cudaStream_t stream, const Broadcast& command) {
  with_nccl(command.communicator, "ncclBroadcast", [&](ncclComm_t comm) {
    const auto& data = command.data;
    return ncclBroadcast(data.data, data.data, count_of(data), nccl_type(data.type), command.root, comm, stream);
  });
}

void RealDriver::perform(cudaStream_t stream, const Exchange& command) {
  with_nccl(command.communicator, "ncclGroupEnd of ncclSend and ncclRecv",
            [&](ncclComm_t comm) { return exchange(command.transfers, comm, stream); });
}

}  // namespace orthant::cuda
