// SPDX-License-Identifier: Apache-2.0
// The mesh of a run as one rank sees it: its coordinate, and a lane (communicator + request stream) for everything that
// strategies say to each other. All made up front, in one global order on all ranks. Degree 1 is no special case: a
// communicator of one rank is there.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <orthant/core/comm/fabric.hpp>
#include <orthant/core/comm/lane.hpp>
#include <orthant/core/stream/scheduler.hpp>
#include <orthant/mesh/mesh_shape.hpp>
#include <orthant/mesh/pipeline_topology.hpp>

namespace orthant::mesh {

class DeviceMesh {
 public:
  /// Collective over all ranks of `fabric`, which outlives the mesh, as does `scheduler`.
  /// Throws ConfigError if the fabric does not have shape.size() ranks.
  DeviceMesh(comm::Fabric& fabric, stream::Scheduler& scheduler, const MeshShape& shape,
             const PipelineTopology& topology);
  DeviceMesh(comm::Fabric& fabric, stream::Scheduler& scheduler, const MeshShape& shape)
      : DeviceMesh(fabric, scheduler, shape, chain_topology(shape.pp)) {}

  const MeshShape& shape() const { return shape_; }
  int rank() const { return rank_; }
  const Coordinate& coordinate() const { return coordinate_; }
  int dp_rank() const { return shape_.dp_of(coordinate_); }
  /// "pp1 dp0 tp1"
  std::string text() const;

  comm::Lane tp() const { return tp_; }
  /// Neighbours along tp that hold the same key/value heads; null where each has its own, or all have the same.
  comm::Lane tp_share() const { return tp_share_; }
  /// Weights over the shard group: the whole dp axis, unless sharding is hybrid.
  comm::Lane dp_gather() const { return dp_gather_; }
  /// Gradients over the shard group; apart from dp_gather, so that gathers and reductions overlap.
  comm::Lane dp_reduce() const { return dp_reduce_; }
  /// Reduced gradients over the ranks that hold the same slices; null where sharding is not hybrid.
  comm::Lane dp_replica() const { return dp_replica_; }
  /// The pipeline ranks at this dp and tp coordinate that hold the same weights (the topology's ties); null where there
  /// are none.
  comm::Lane tie() const { return tie_; }
  /// All ranks of this pipeline coordinate: sums of a stage's loss and norm.
  comm::Lane stage() const { return stage_; }
  /// Along the pipeline.
  comm::Lane pp() const { return pp_; }
  /// One direction along the pipeline, rank by rank, for prefix sums; null at its ends.
  comm::ChannelLane prefix_in() const { return prefix_in_; }
  comm::ChannelLane prefix_out() const { return prefix_out_; }
  /// All ranks, for the run itself: agreements, saves, stops. Never carries data, so it works while data is stuck.
  comm::Lane control() const { return control_; }
  /// This rank's end of an edge of the topology; null if it has none.
  comm::ChannelLane pipeline(const PipelineEdge& edge) const;

 private:
  using Groups = std::vector<std::vector<int>>;
  comm::Lane make_lane(const std::string& name, const Groups& groups);
  Groups tie_groups(const PipelineTopology& topology) const;
  void make_pipeline(const PipelineTopology& topology);
  comm::ChannelLane make_channel(const std::string& name, int source, int destination);

  comm::Fabric& fabric_;
  stream::Scheduler& scheduler_;
  MeshShape shape_;
  int rank_;
  Coordinate coordinate_;
  std::vector<std::unique_ptr<comm::Collectives>> communicators_;
  std::vector<std::unique_ptr<comm::Channel>> channels_;
  comm::Lane tp_, tp_share_, dp_gather_, dp_reduce_, dp_replica_, tie_, stage_, pp_, control_;
  comm::ChannelLane prefix_in_, prefix_out_;
  std::map<PipelineEdge, comm::ChannelLane> pipeline_;
};

}  // namespace orthant::mesh
