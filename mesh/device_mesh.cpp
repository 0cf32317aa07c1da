// SPDX-License-Identifier: Apache-2.0
#include <orthant/mesh/device_mesh.hpp>

#include <numeric>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>

namespace orthant::mesh {
namespace {

using Groups = std::vector<std::vector<int>>;

void check(const MeshShape& shape, int ranks) {
  if (shape.size() != ranks) {
    throw ConfigError(
        fmt::format("mesh pp = {} x dp = {} x tp = {} wants {} ranks, the run has {}; start {} ranks or change [mesh]",
                    shape.pp, shape.dp(), shape.tp, shape.size(), ranks, shape.size()));
  }
  if (shape.dp_replicate != 1) {
    throw ConfigError(
        fmt::format("mesh.dp_shard = {} is smaller than dp = {}; hybrid sharding is not supported, use dp_shard = {}",
                    shape.dp_shard, shape.dp(), shape.dp()));
  }
}

/// First and last of every pipeline; one rank where there is one stage.
Groups tie_groups(const MeshShape& shape) {
  Groups groups;
  for (const auto& stages : shape.groups(Axis::pp)) {
    groups.push_back({stages.front()});
    if (stages.size() > 1) groups.back().push_back(stages.back());
  }
  return groups;
}

}  // namespace

DeviceMesh::DeviceMesh(comm::Fabric& fabric, stream::Scheduler& scheduler, const MeshShape& shape)
    : fabric_(fabric),
      scheduler_(scheduler),
      shape_(shape),
      rank_(fabric.rank()),
      coordinate_(shape.coordinate_of(rank_)) {
  check(shape, fabric.size());
  std::vector<int> all(static_cast<std::size_t>(fabric.size()));
  std::iota(all.begin(), all.end(), 0);

  // The global order. It must not depend on the rank.
  control_ = make_lane("control", {all});
  world_ = make_lane("world", {all});
  tp_ = make_lane("tp", shape.groups(Axis::tp));
  dp_gather_ = make_lane("dp_gather", shape.groups(Axis::dp));
  dp_reduce_ = make_lane("dp_reduce", shape.groups(Axis::dp));
  tie_ = make_lane("tie", tie_groups(shape));
  make_pipeline();
}

comm::Lane DeviceMesh::make_lane(const std::string& name, const Groups& groups) {
  comm::Lane lane{nullptr, scheduler_.add_stream(name, stream::StreamKind::request)};
  for (const auto& members : groups) {  // every rank takes part in making every group, its own or not
    auto made = fabric_.make_collectives(name, members);
    if (!made) continue;
    lane.collectives = made.get();
    communicators_.push_back(std::move(made));
  }
  return lane;
}

comm::ChannelLane DeviceMesh::make_channel(const std::string& name, int source, int destination) {
  auto made = fabric_.make_channel(name, source, destination);
  if (!made) return {};
  channels_.push_back(std::move(made));
  return {channels_.back().get(),
          scheduler_.add_stream(name + (rank_ == source ? " out" : " in"), stream::StreamKind::request)};
}

void DeviceMesh::make_pipeline() {
  for (const auto& stages : shape_.groups(Axis::pp)) {
    for (std::size_t s = 0; s + 1 < stages.size(); ++s) {
      const auto activations = make_channel("activations", stages[s], stages[s + 1]);
      const auto gradients = make_channel("gradients", stages[s + 1], stages[s]);
      if (rank_ == stages[s]) {
        pipeline_.activations_out = activations;
        pipeline_.gradients_in = gradients;
      } else if (rank_ == stages[s + 1]) {
        pipeline_.activations_in = activations;
        pipeline_.gradients_out = gradients;
      }
    }
  }
}

std::string DeviceMesh::text() const {
  return fmt::format("pp{} dp{} tp{}", coordinate_.pp, dp_rank(), coordinate_.tp);
}

}  // namespace orthant::mesh
