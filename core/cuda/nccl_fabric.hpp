// SPDX-License-Identifier: Apache-2.0
// NcclFabric: an NCCL communicator per group and per channel. It opens no port of its own for bootstrap: unique ids
// travel over the host fabric. What lies in host memory (sizes, hashes, scalars) goes over the host fabric too. Sums:
// reduce_scatter of bf16 is exchanged and added here, in fp32 and in rank order; fp32 and fp64 sums and all_reduce are
// NCCL's, equal on all members but in an order of NCCL's choice.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <orthant/core/cuda/device_fabric.hpp>
#include <orthant/core/cuda/staged_fabric.hpp>

namespace orthant::cuda {

class NcclGroup;

class NcclFabric final : public DeviceFabric {
 public:
  /// Both outlive the fabric; its communicators end before it. timeout  for the exchange of one unique id.
  /// Collective over all ranks.
  NcclFabric(Driver& driver, comm::Fabric& host, std::chrono::milliseconds timeout);

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  std::unique_ptr<comm::Collectives> make_collectives(const std::string& name, std::span<const int> members) override;
  std::unique_ptr<comm::Channel> make_channel(const std::string& name, int source, int destination) override;
  /// Aborts every communicator of this rank and the host fabric, which tells the peers.
  void abort(const std::string& why) noexcept override;
  void check() override;
  void register_buffer(const comm::Collectives& communicator, comm::Span buffer) override;
  const char* kind() const override { return "nccl"; }

 private:
  /// Null on ranks that are no member.
  std::shared_ptr<NcclGroup> make_group(const std::string& name, std::span<const int> members);
  std::vector<std::shared_ptr<NcclGroup>> groups();

  Driver& driver_;
  comm::Fabric& host_;
  const std::chrono::milliseconds timeout_;
  std::unique_ptr<comm::Collectives> world_;  ///< on the host
  StagedFabric staged_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<NcclGroup>> groups_;
};

}  // namespace orthant::cuda
