// SPDX-License-Identifier: Apache-2.0
// Ranks are threads of one process. LocalWorld is what they share; LocalFabric is what each of them holds. A run of one
// rank is a LocalWorld of one: the same path, with nobody to wait for.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <orthant/core/comm/fabric.hpp>

namespace orthant::comm {

class Meeting;

class LocalWorld {
 public:
  explicit LocalWorld(int size);
  ~LocalWorld();

  int size() const { return size_; }

  /// Fails every operation, open or later, of every rank with CommError(why), except those that all members have
  /// called: a thread may be about them, and they end well. A buffer may go when its Work is done.
  void abort(const std::string& why);

  /// One line per open operation: what it is, who is there and who is missing. For watchdogs.
  std::vector<std::string> open_operations() const;

 private:
  friend class LocalFabric;
  /// The meeting that every rank makes as its `index`-th. Throws CommError if another rank made a different one there.
  std::shared_ptr<Meeting> meeting(std::size_t index, const std::string& name, std::span<const int> members);

  const int size_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Meeting>> meetings_;  ///< in the global order of creation
  std::optional<std::string> aborted_;
};

/// Unlike processes, threads need not wait for each other to make a communicator; the order of creation is checked all
/// the same.
class LocalFabric final : public Fabric {
 public:
  LocalFabric(std::shared_ptr<LocalWorld> world, int rank);

  int rank() const override { return rank_; }
  int size() const override { return world_->size(); }
  std::unique_ptr<Collectives> make_collectives(const std::string& name, std::span<const int> members) override;
  std::unique_ptr<Channel> make_channel(const std::string& name, int source, int destination) override;
  void abort(const std::string& why) noexcept override { world_->abort(why); }

 private:
  std::shared_ptr<LocalWorld> world_;
  int rank_;
  std::size_t made_ = 0;
};

/// A communicator of one rank, for any fabric: operations are done when the call returns.
std::unique_ptr<Collectives> make_self_collectives(const std::string& name, int world_rank);

}  // namespace orthant::comm
