// SPDX-License-Identifier: Apache-2.0
// The five collectives, and channels, as NCCL commands on the current device stream. A communicator belongs to one
// lane, so all its operations stand on the lane's stream, in order.
#pragma once

#include <memory>

#include <orthant/core/comm/operation.hpp>
#include <orthant/core/cuda/nccl_group.hpp>

namespace orthant::cuda {

class NcclCollectives final : public comm::PostingCollectives {
 public:
  /// host  the same members on the host fabric, for host memory
  NcclCollectives(std::shared_ptr<NcclGroup> group, std::unique_ptr<comm::Collectives> host);

  NcclGroup& group() const { return *group_; }

 private:
  comm::Work post(const comm::Operation& operation) override;
  void enqueue(DeviceStream stream, const comm::Operation& operation);
  void enqueue_reduce_scatter(DeviceStream stream, const comm::Operation& operation);

  std::shared_ptr<NcclGroup> group_;
  std::unique_ptr<comm::Collectives> host_;
};

class NcclChannel final : public comm::Channel {
 public:
  /// peer_in_group  0 source, 1 destination
  NcclChannel(std::shared_ptr<NcclGroup> group, std::unique_ptr<comm::Channel> host, int peer_in_group);

  comm::Work send(comm::ConstSpan data) override;
  comm::Work receive(comm::Span data) override;

 private:
  comm::Work run(const comm::Operation& operation, const Transfer& transfer);

  std::shared_ptr<NcclGroup> group_;
  std::unique_ptr<comm::Channel> host_;
  int peer_in_group_;
};

}  // namespace orthant::cuda
