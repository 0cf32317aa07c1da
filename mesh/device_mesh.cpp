// SPDX-License-Identifier: Apache-2.0
#include <orthant/mesh/device_mesh.hpp>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>

namespace orthant::mesh {
namespace {

void check(const MeshShape& shape, int ranks) {
  if (shape.size() != ranks) {
    throw ConfigError(
        fmt::format("mesh pp = {} x dp = {} x tp = {} wants {} ranks, the run has {}; start {} ranks or change [mesh]",
                    shape.pp, shape.dp(), shape.tp, shape.size(), ranks, shape.size()));
  }
}

/// Ranks of the same pipeline coordinate.
std::vector<std::vector<int>> stage_groups(const MeshShape& shape) {
  std::vector<std::vector<int>> groups(static_cast<std::size_t>(shape.pp));
  for (int rank = 0; rank < shape.size(); ++rank)
    groups[static_cast<std::size_t>(shape.coordinate_of(rank).pp)].push_back(rank);
  return groups;
}

/// Ranks count tp innermost.
std::vector<std::vector<int>> share_groups(const MeshShape& shape) {
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < shape.size(); ++rank) {
    if (rank % shape.tp_share == 0) groups.emplace_back();
    groups.back().push_back(rank);
  }
  return groups;
}

}  // namespace

DeviceMesh::DeviceMesh(comm::Fabric& fabric, stream::Scheduler& scheduler, const MeshShape& shape,
                       const PipelineTopology& topology)
    : fabric_(fabric),
      scheduler_(scheduler),
      shape_(shape),
      rank_(fabric.rank()),
      coordinate_(shape.coordinate_of(rank_)) {
  check(shape, fabric.size());
  // The global order. It must not depend on the rank.
  control_ = make_lane("control", {fabric.all_ranks()});
  stage_ = make_lane("stage", stage_groups(shape));
  pp_ = make_lane("pp", shape.groups(Axis::pp));
  tp_ = make_lane("tp", shape.groups(Axis::tp));
  if (shape.tp_share > 1 && shape.tp_share < shape.tp) tp_share_ = make_lane("tp_share", share_groups(shape));
  dp_gather_ = make_lane("dp_gather", shape.groups(Axis::dp_shard));
  dp_reduce_ = make_lane("dp_reduce", shape.groups(Axis::dp_shard));
  if (shape.dp_replicate > 1) dp_replica_ = make_lane("dp_replica", shape.groups(Axis::dp_replicate));
  tie_ = make_lane("tie", tie_groups(topology));
  make_pipeline(topology);
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

DeviceMesh::Groups DeviceMesh::tie_groups(const PipelineTopology& topology) const {
  Groups groups;
  for (const auto& pipeline : shape_.groups(Axis::pp)) {
    for (const auto& tie : topology.ties) {
      groups.emplace_back();
      for (const int pp : tie) groups.back().push_back(pipeline[static_cast<std::size_t>(pp)]);
    }
  }
  return groups;
}

void DeviceMesh::make_pipeline(const PipelineTopology& topology) {
  for (const auto& ranks : shape_.groups(Axis::pp)) {
    const auto rank_at = [&](int pp) { return ranks[static_cast<std::size_t>(pp)]; };
    for (const PipelineEdge& edge : topology.edges) {
      const auto lane =
          make_channel(edge.gradient ? "gradients" : "activations", rank_at(edge.source), rank_at(edge.destination));
      if (lane.channel != nullptr) pipeline_[edge] = lane;
    }
    for (int pp = 0; pp + 1 < shape_.pp; ++pp) {
      const auto lane = make_channel("prefix", rank_at(pp), rank_at(pp + 1));
      if (rank_ == rank_at(pp)) prefix_out_ = lane;
      if (rank_ == rank_at(pp + 1)) prefix_in_ = lane;
    }
  }
}

comm::ChannelLane DeviceMesh::pipeline(const PipelineEdge& edge) const {
  const auto lane = pipeline_.find(edge);
  return lane == pipeline_.end() ? comm::ChannelLane{} : lane->second;
}

std::string DeviceMesh::text() const {
  return fmt::format("pp{} dp{} tp{}", coordinate_.pp, dp_rank(), coordinate_.tp);
}

}  // namespace orthant::mesh
