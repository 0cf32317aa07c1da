// SPDX-License-Identifier: Apache-2.0
// A fabric connects the ranks of a run and makes communicators and channels over them. One per rank, owned by launch.
// Back ends: local (ranks are threads), mpi (ranks are processes), nccl (module). A group
// of one rank is there in each, by the same path.
#pragma once

#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <orthant/core/comm/collectives.hpp>

namespace orthant::comm {

class Fabric {
 public:
  virtual ~Fabric() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// 0 .. size() - 1: the members of a group of everybody.
  std::vector<int> all_ranks() const {
    std::vector<int> ranks(static_cast<std::size_t>(size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  /// Collective over all ranks of the run, members or not, in one global order. `members` are world ranks in ascending
  /// order; a rank that is not among them gets nullptr.
  virtual std::unique_ptr<Collectives> make_collectives(const std::string& name, std::span<const int> members) = 0;
  /// Collective over all ranks likewise. Returns the end that this rank holds, or nullptr.
  virtual std::unique_ptr<Channel> make_channel(const std::string& name, int source, int destination) = 0;

  /// Fails every operation that is open here and at the peers, now and later, with CommError(why). Any thread; never
  /// blocks.
  virtual void abort(const std::string& why) noexcept = 0;
};

}  // namespace orthant::comm
