// SPDX-License-Identifier: Apache-2.0
// PacedFabric: a decorator whose channels take the time of a given link, over whatever transport lies below. A message
// arrives when its link would have delivered it, counted from the later of: its send was posted, its receive was
// posted. Both moments are read from the host's monotonic clock, so all ranks must be on one host, and the transport
// below must be faster than the link. Collectives pass through unpaced.
#pragma once

#include <memory>
#include <string>

#include <orthant/core/comm/fabric.hpp>
#include <orthant/core/stream/timer.hpp>

namespace orthant::comm {

struct Link {
  double latency_us = 0;
  double bytes_per_us = 0;  ///< 0: without a limit
  double duration_us(std::size_t bytes) const {
    return latency_us + (bytes_per_us > 0 ? static_cast<double>(bytes) / bytes_per_us : 0.0);
  }
};

class PacedFabric final : public Fabric {
 public:
  /// below  outlives this.
  PacedFabric(Fabric& below, Link link) : below_(below), link_(link), timer_(std::make_shared<stream::Timer>()) {}

  int rank() const override { return below_.rank(); }
  int size() const override { return below_.size(); }
  std::unique_ptr<Collectives> make_collectives(const std::string& name, std::span<const int> members) override {
    return below_.make_collectives(name, members);
  }
  std::unique_ptr<Channel> make_channel(const std::string& name, int source, int destination) override;
  void abort(const std::string& why) noexcept override { below_.abort(why); }

 private:
  Fabric& below_;
  Link link_;
  std::shared_ptr<stream::Timer> timer_;  ///< shared with the channels
};

}  // namespace orthant::comm
