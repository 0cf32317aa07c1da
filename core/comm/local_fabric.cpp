// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/comm/local_fabric.hpp>

#include <algorithm>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/meeting.hpp>

namespace orthant::comm {
namespace {

class LocalCollectives final : public PostingCollectives {
 public:
  LocalCollectives(std::shared_ptr<Meeting> meeting, int rank)
      : PostingCollectives(meeting->name(), rank, static_cast<int>(meeting->members().size())),
        meeting_(std::move(meeting)) {}

 private:
  Work post(const Operation& operation) override { return meeting_->arrive(rank(), operation); }
  std::shared_ptr<Meeting> meeting_;
};

class LocalChannel final : public Channel {
 public:
  LocalChannel(std::shared_ptr<Meeting> meeting, int peer)
      : Channel(meeting->name(), peer), meeting_(std::move(meeting)) {}
  Work send(ConstSpan data) override { return meeting_->arrive(0, Operation::send(data)); }
  Work receive(Span data) override { return meeting_->arrive(1, Operation::receive(data)); }

 private:
  std::shared_ptr<Meeting> meeting_;
};

}  // namespace

LocalWorld::LocalWorld(int size) : size_(size) { invariant(size >= 1, "a world has at least one rank"); }
LocalWorld::~LocalWorld() = default;

void LocalWorld::abort(const std::string& why) {
  std::unique_lock guard(mutex_);
  if (!aborted_) aborted_ = why;
  const auto meetings = meetings_;
  guard.unlock();
  for (const auto& meeting : meetings) meeting->abort(why);
}

std::vector<std::string> LocalWorld::open_operations() const {
  std::unique_lock guard(mutex_);
  const auto meetings = meetings_;
  guard.unlock();
  std::vector<std::string> lines;
  for (const auto& meeting : meetings) {
    for (auto& line : meeting->open()) lines.push_back(std::move(line));
  }
  return lines;
}

std::shared_ptr<Meeting> LocalWorld::meeting(std::size_t index, const std::string& name, std::span<const int> members) {
  const std::lock_guard guard(mutex_);
  if (aborted_) throw CommError(*aborted_);
  if (index == meetings_.size())
    meetings_.push_back(std::make_shared<Meeting>(name, std::vector(members.begin(), members.end())));
  const auto& made = meetings_[index];
  if (made->name() != name || !std::ranges::equal(made->members(), members)) {
    throw CommError(fmt::format("communicator {} is {} on one rank and {} on another", index,
                                describe_group(made->name(), made->members()), describe_group(name, members)));
  }
  return made;
}

LocalFabric::LocalFabric(std::shared_ptr<LocalWorld> world, int rank) : world_(std::move(world)), rank_(rank) {
  invariant(rank >= 0 && rank < world_->size(), "a rank lies within its world");
}

std::unique_ptr<Collectives> LocalFabric::make_collectives(const std::string& name, std::span<const int> members) {
  auto meeting = world_->meeting(made_++, name, members);
  const auto me = std::ranges::find(members, rank_);
  if (me == members.end()) return nullptr;
  return std::make_unique<LocalCollectives>(std::move(meeting), static_cast<int>(me - members.begin()));
}

std::unique_ptr<Channel> LocalFabric::make_channel(const std::string& name, int source, int destination) {
  invariant(source != destination, "a channel joins two ranks");
  const int ends[] = {source, destination};
  auto meeting = world_->meeting(made_++, name, ends);
  if (rank_ != source && rank_ != destination) return nullptr;
  return std::make_unique<LocalChannel>(std::move(meeting), rank_ == source ? destination : source);
}

std::unique_ptr<Collectives> make_self_collectives(const std::string& name, int world_rank) {
  return std::make_unique<LocalCollectives>(std::make_shared<Meeting>(name, std::vector{world_rank}), 0);
}

}  // namespace orthant::comm
