// SPDX-License-Identifier: Apache-2.0
// PacedCollectives: a decorator whose gathers and reduce-scatters take a given time, however small the real message is.
// An operation begins when the last rank has posted it, which the ranks tell each other, and ends that much later. Read
// from the host's monotonic clock: all ranks on one host. What comm::PacedFabric is for channels.
#pragma once

#include <functional>
#include <memory>

#include <orthant/core/comm/collectives.hpp>
#include <orthant/core/stream/timer.hpp>

namespace orthant::launch {

struct Pace {
  double all_gather_us = 0;
  double reduce_scatter_us = 0;
};

class PacedCollectives final : public comm::Collectives {
 public:
  PacedCollectives(std::unique_ptr<comm::Collectives> below, Pace pace)
      : Collectives(below->name(), below->rank(), below->size()), below_(std::move(below)), pace_(pace) {}

  stream::Work all_gather(comm::ConstSpan shard, comm::Span full) override {
    return paced(pace_.all_gather_us, [&] { return below_->all_gather(shard, full); });
  }
  stream::Work reduce_scatter(comm::Span full, comm::Span shard, comm::Into into) override {
    return paced(pace_.reduce_scatter_us, [&] { return below_->reduce_scatter(full, shard, into); });
  }
  stream::Work all_reduce(comm::Span data, comm::Reduction op) override { return below_->all_reduce(data, op); }
  stream::Work all_to_all(comm::ConstSpan in, comm::Span out) override { return below_->all_to_all(in, out); }
  stream::Work broadcast(comm::Span data, int root) override { return below_->broadcast(data, root); }

 private:
  stream::Work paced(double duration_us, const std::function<stream::Work()>& start);

  std::unique_ptr<comm::Collectives> below_;
  Pace pace_;
  stream::Timer timer_;
};

}  // namespace orthant::launch
