// SPDX-License-Identifier: Apache-2.0
// The mesh of a run as one rank sees it: its coordinate, and a lane (communicator + request stream) for everything that
// strategies say to each other. All made up front, in one global order on all ranks. Degree 1 is no special case: a
// communicator of one rank is there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <orthant/core/comm/fabric.hpp>
#include <orthant/core/comm/lane.hpp>
#include <orthant/core/stream/scheduler.hpp>
#include <orthant/mesh/mesh_shape.hpp>

namespace orthant::mesh {

/// What a stage exchanges with its neighbours. The channel is null where there is no such neighbour.
struct PipelineLanes {
  comm::ChannelLane activations_in;   ///< from the previous stage
  comm::ChannelLane activations_out;  ///< to the next stage
  comm::ChannelLane gradients_in;     ///< from the next stage
  comm::ChannelLane gradients_out;    ///< to the previous stage
};

class DeviceMesh {
 public:
  /// Collective over all ranks of `fabric`, which outlives the mesh, as does `scheduler`.
  /// Throws ConfigError if the fabric does not have shape.size() ranks, or dp_replicate is not 1 (hybrid sharding is
  /// not built yet).
  DeviceMesh(comm::Fabric& fabric, stream::Scheduler& scheduler, const MeshShape& shape);

  const MeshShape& shape() const { return shape_; }
  int rank() const { return rank_; }
  const Coordinate& coordinate() const { return coordinate_; }
  int dp_rank() const { return shape_.dp_of(coordinate_); }
  /// "pp1 dp0 tp1"
  std::string text() const;

  comm::Lane tp() const { return tp_; }
  /// Weights over the whole dp axis.
  comm::Lane dp_gather() const { return dp_gather_; }
  /// Gradients over the whole dp axis; apart from dp_gather, so that gathers and reductions overlap.
  comm::Lane dp_reduce() const { return dp_reduce_; }
  /// The first and the last stage at this dp and tp coordinate, for tied weights; no member on stages between.
  comm::Lane tie() const { return tie_; }
  /// All ranks, for data: norms, losses, counts.
  comm::Lane world() const { return world_; }
  /// All ranks, for the run itself: agreements, saves, stops. Never carries data, so it works while data is stuck.
  comm::Lane control() const { return control_; }
  const PipelineLanes& pipeline() const { return pipeline_; }

 private:
  comm::Lane make_lane(const std::string& name, const std::vector<std::vector<int>>& groups);
  void make_pipeline();
  comm::ChannelLane make_channel(const std::string& name, int source, int destination);

  comm::Fabric& fabric_;
  stream::Scheduler& scheduler_;
  MeshShape shape_;
  int rank_;
  Coordinate coordinate_;
  std::vector<std::unique_ptr<comm::Collectives>> communicators_;
  std::vector<std::unique_ptr<comm::Channel>> channels_;
  comm::Lane tp_, dp_gather_, dp_reduce_, tie_, world_, control_;
  PipelineLanes pipeline_;
};

}  // namespace orthant::mesh
