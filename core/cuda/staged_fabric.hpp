// SPDX-License-Identifier: Apache-2.0
// StagedFabric: carries device memory over a host fabric. Each operation is a chain: copy to pinned memory, operation
// of the host fabric, copy back. For ranks that share a device, which NCCL refuses, and to compare NCCL with; sums are
// in rank order.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <orthant/core/comm/operation.hpp>
#include <orthant/core/cuda/device_fabric.hpp>
#include <orthant/core/cuda/event_relay.hpp>
#include <orthant/core/cuda/pinned_pool.hpp>

namespace orthant::cuda {

/// The operation as a call of the communicator.
comm::Work call(comm::Collectives& collectives, const comm::Operation& operation);

class StagedFabric final : public DeviceFabric {
 public:
  /// Both outlive the fabric. Its communicators end before it.
  StagedFabric(Driver& driver, comm::Fabric& host);

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  std::unique_ptr<comm::Collectives> make_collectives(const std::string& name, std::span<const int> members) override;
  std::unique_ptr<comm::Channel> make_channel(const std::string& name, int source, int destination) override;
  void abort(const std::string& why) noexcept override { host_.abort(why); }
  void check() override {}  // the host fabric fails the operations themselves
  void register_buffer(const comm::Collectives&, comm::Span) override {}
  const char* kind() const override { return "staged"; }

  /// Starts the chain. `carry` is the operation on host memory; it is called in the order of run() for each stream.
  comm::Work run(const comm::Operation& operation, std::string description,
                 std::function<comm::Work(const comm::Operation&)> carry);
  EventRelay& relay() { return relay_; }

 private:
  struct Chain;
  void deliver(const std::shared_ptr<Chain>& chain);

  Driver& driver_;
  comm::Fabric& host_;
  PinnedPool pinned_;  // before the relay, whose last steps give memory back
  EventRelay relay_;
};

}  // namespace orthant::cuda
