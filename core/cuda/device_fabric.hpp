// SPDX-License-Identifier: Apache-2.0
// What a fabric of device memory can do beside making communicators. Its operations read and write device memory or
// host memory; all spans of one operation lie in the same kind on all ranks. Host memory travels over the host fabric
// (MPI). Inside a scheduler's task an operation is put on the task's stream, and its Work is complete when it stands
// there; outside, the operation follows what stands on the default stream, and the Work is complete when the device has
// done it.
#pragma once

#include <chrono>
#include <memory>

#include <orthant/core/comm/fabric.hpp>
#include <orthant/core/cuda/driver.hpp>

namespace orthant::cuda {

class DeviceFabric : public comm::Fabric {
 public:
  /// Throws CommError, naming communicator and last operation, if the device has reported a failure of a peer or of the
  /// network.
  virtual void check() = 0;
  /// `buffer` will be used in many operations of this fabric's `communicator`: a hint, valid until that communicator
  /// ends.
  virtual void register_buffer(const comm::Collectives& communicator, comm::Span buffer) = 0;
  /// For the log: how device memory travels.
  virtual const char* kind() const = 0;
};

/// NcclFabric where every rank has a device to itself, else StagedFabric: two ranks on one device cannot form an NCCL
/// communicator. host     makes communicators besides, and carries what lies in host memory; outlives the fabric, as
/// the driver does. timeout  for agreeing on how to begin Collective over all ranks.
std::unique_ptr<DeviceFabric> make_device_fabric(Driver& driver, comm::Fabric& host, std::chrono::milliseconds timeout);

}  // namespace orthant::cuda
