// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/cuda/nccl_fabric.hpp>

#include <algorithm>
#include <utility>

#include <orthant/core/cuda/nccl_collectives.hpp>

namespace orthant::cuda {
namespace {

std::unique_ptr<comm::Collectives> make_world(comm::Fabric& host) {
  return host.make_collectives("nccl_ids", host.all_ranks());
}

}  // namespace

NcclFabric::NcclFabric(Driver& driver, comm::Fabric& host, std::chrono::milliseconds timeout)
    : driver_(driver), host_(host), timeout_(timeout), world_(make_world(host)), staged_(driver, host) {}

std::shared_ptr<NcclGroup> NcclFabric::make_group(const std::string& name, std::span<const int> members) {
  UniqueId id{};
  if (rank() == members.front()) id = driver_.unique_id();
  world_->broadcast({id.data(), static_cast<std::int64_t>(id.size()), DType::u8}, members.front()).wait(timeout_);
  const auto me = std::ranges::find(members, rank());
  if (me == members.end()) return nullptr;
  const Communicator communicator =
      driver_.init(id, static_cast<int>(me - members.begin()), static_cast<int>(members.size()), name);
  auto group = std::make_shared<NcclGroup>(driver_, staged_.relay(), communicator, comm::describe_group(name, members));
  const std::lock_guard guard(mutex_);
  groups_.push_back(group);
  return group;
}

std::unique_ptr<comm::Collectives> NcclFabric::make_collectives(const std::string& name, std::span<const int> members) {
  auto host = staged_.make_collectives(name, members);
  auto group = make_group(name, members);
  if (!group) return nullptr;
  return std::make_unique<NcclCollectives>(std::move(group), std::move(host));
}

std::unique_ptr<comm::Channel> NcclFabric::make_channel(const std::string& name, int source, int destination) {
  const int ends[] = {source, destination};
  auto host = staged_.make_channel(name, source, destination);
  auto group = make_group(name, ends);
  if (!group) return nullptr;
  return std::make_unique<NcclChannel>(std::move(group), std::move(host), rank() == source ? 1 : 0);
}

std::vector<std::shared_ptr<NcclGroup>> NcclFabric::groups() {
  const std::lock_guard guard(mutex_);
  std::vector<std::shared_ptr<NcclGroup>> alive;
  std::erase_if(groups_, [&](const std::weak_ptr<NcclGroup>& group) {
    auto locked = group.lock();
    if (!locked) return true;
    alive.push_back(std::move(locked));
    return false;
  });
  return alive;
}

void NcclFabric::abort(const std::string& why) noexcept {
  for (const auto& group : groups()) group->abort(why);
  host_.abort(why);
}

void NcclFabric::check() {
  for (const auto& group : groups()) group->check();
}

void NcclFabric::register_buffer(const comm::Collectives& communicator, comm::Span buffer) {
  if (const auto* nccl = dynamic_cast<const NcclCollectives*>(&communicator)) {
    driver_.register_buffer(nccl->group().communicator(), buffer);
  }
}

}  // namespace orthant::cuda
