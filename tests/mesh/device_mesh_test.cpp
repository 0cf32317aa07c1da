// SPDX-License-Identifier: Apache-2.0
#include <orthant/mesh/device_mesh.hpp>

#include <set>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/agree.hpp>
#include <orthant/core/comm/recording_fabric.hpp>
#include <orthant/tests/harness/run_ranks.hpp>

namespace orthant::tests {
namespace {

using namespace std::chrono_literals;
using mesh::Axis;
using mesh::chain_topology;
using mesh::DeviceMesh;
using mesh::MeshShape;
using mesh::PipelineTopology;

/// Only hands out streams: a mesh submits nothing.
class StreamBook final : public stream::Scheduler {
 public:
  stream::StreamId add_stream(std::string, stream::StreamKind kind) override {
    EXPECT_EQ(kind, stream::StreamKind::request);
    return {streams++};
  }
  stream::BufferId add_buffer(std::string) override { return {}; }
  stream::TaskId submit(stream::Task) override { return {}; }
  void wait(stream::TaskId) override {}
  void drain() override {}
  int streams = 0;
};

/// The world ranks behind a communicator, as its members report them.
std::vector<int> members(const comm::Lane& lane, int rank) {
  std::vector<int> ranks;
  for (const auto& text : comm::gather_strings(*lane.collectives, std::to_string(rank), 30s))
    ranks.push_back(std::stoi(text));
  return ranks;
}

void expect_lanes(comm::Fabric& fabric, const MeshShape& shape) {
  StreamBook book;
  const DeviceMesh mesh(fabric, book, shape);
  const int me = fabric.rank();
  const auto whole = MeshShape{.dp_shard = shape.size()}.group(Axis::dp, 0);
  EXPECT_EQ(members(mesh.control(), me), whole);
  std::vector<int> same_stage;
  for (int rank = 0; rank < shape.size(); ++rank) {
    if (shape.coordinate_of(rank).pp == mesh.coordinate().pp) same_stage.push_back(rank);
  }
  EXPECT_EQ(members(mesh.stage(), me), same_stage);
  EXPECT_EQ(members(mesh.pp(), me), shape.group(Axis::pp, me));
  EXPECT_EQ(members(mesh.tp(), me), shape.group(Axis::tp, me));
  EXPECT_EQ(members(mesh.dp_gather(), me), shape.group(Axis::dp_shard, me));
  EXPECT_EQ(members(mesh.dp_reduce(), me), shape.group(Axis::dp_shard, me));
  EXPECT_EQ(mesh.dp_replica().collectives == nullptr, shape.dp_replicate == 1);
  if (shape.dp_replicate > 1) {
    EXPECT_EQ(members(mesh.dp_replica(), me), shape.group(Axis::dp_replicate, me));
  }
  EXPECT_NE(mesh.dp_gather().collectives, mesh.dp_reduce().collectives);

  const auto stages = shape.group(Axis::pp, me);
  const int stage = mesh.coordinate().pp;
  if (stage == 0 || stage == shape.pp - 1) {
    const std::set<int> wanted{stages.front(), stages.back()};
    EXPECT_EQ(members(mesh.tie(), me), std::vector<int>(wanted.begin(), wanted.end()));
  } else {
    EXPECT_EQ(mesh.tie().collectives, nullptr);
  }

  std::set<stream::StreamId> streams{mesh.tp().stream,     mesh.dp_gather().stream, mesh.dp_reduce().stream,
                                     mesh.tie().stream,    mesh.stage().stream,     mesh.pp().stream,
                                     mesh.control().stream};
  if (shape.dp_replicate > 1) streams.insert(mesh.dp_replica().stream);
  const auto add_stream = [&](const comm::ChannelLane& lane) {
    if (lane.channel != nullptr) streams.insert(lane.stream);
  };
  for (const auto& edge : chain_topology(shape.pp).edges) add_stream(mesh.pipeline(edge));
  add_stream(mesh.prefix_in());
  add_stream(mesh.prefix_out());
  EXPECT_EQ(static_cast<int>(streams.size()), book.streams) << "every lane has a stream of its own";
}

TEST(DeviceMesh, ConnectsEveryAxisOfEveryMesh) {
  for (const int pp : {1, 2, 3}) {
    for (const int dp : {1, 2, 3}) {
      for (const int tp : {1, 2}) {
        const MeshShape shape{.pp = pp, .dp_shard = dp, .tp = tp};
        run_ranks(shape.size(), [&](comm::Fabric& fabric) { expect_lanes(fabric, shape); });
      }
    }
  }
}

TEST(DeviceMesh, ConnectsShardGroupsAndReplicas) {
  for (const MeshShape shape : {MeshShape{.dp_replicate = 2, .dp_shard = 2},
                                {.pp = 2, .dp_replicate = 2, .dp_shard = 1, .tp = 2},
                                {.dp_replicate = 3, .dp_shard = 2}}) {
    run_ranks(shape.size(), [&](comm::Fabric& fabric) { expect_lanes(fabric, shape); });
  }
}

TEST(DeviceMesh, PassesActivationsDownAndGradientsUpThePipeline) {
  const MeshShape shape{.pp = 3, .tp = 2};
  run_ranks(shape.size(), [&](comm::Fabric& fabric) {
    StreamBook book;
    const DeviceMesh mesh(fabric, book, shape);
    const int stage = mesh.coordinate().pp;
    const auto activations_in = mesh.pipeline({stage - 1, stage, false});
    const auto activations_out = mesh.pipeline({stage, stage + 1, false});
    const auto gradients_in = mesh.pipeline({stage + 1, stage, true});
    const auto gradients_out = mesh.pipeline({stage, stage - 1, true});
    EXPECT_EQ(activations_in.channel == nullptr, stage == 0);
    EXPECT_EQ(gradients_out.channel == nullptr, stage == 0);
    EXPECT_EQ(activations_out.channel == nullptr, stage == 2);
    EXPECT_EQ(gradients_in.channel == nullptr, stage == 2);

    const auto pass_on = [&](comm::Channel* from, comm::Channel* to) {
      float value = static_cast<float>(100 * fabric.rank());
      if (from) from->receive({&value, 1, DType::f32}).wait(30s);
      value += 1;
      if (to) to->send({&value, 1, DType::f32}).wait(30s);
      return value;
    };
    const auto tp = static_cast<float>(mesh.coordinate().tp);
    const float down = pass_on(activations_in.channel, activations_out.channel);
    EXPECT_EQ(down, 100 * tp + static_cast<float>(stage + 1));  // began at stage 0 of the same tp
    const float up = pass_on(gradients_in.channel, gradients_out.channel);
    EXPECT_EQ(up, 100 * (4 + tp) + static_cast<float>(3 - stage));
  });
}

TEST(DeviceMesh, MakesTheEdgesAndTiesOfItsTopology) {
  const MeshShape shape{.pp = 4, .dp_shard = 2};
  run_ranks(shape.size(), [&](comm::Fabric& fabric) {
    StreamBook book;
    const PipelineTopology ring{.edges = {{3, 0, false}, {0, 1, false}, {1, 0, false}}, .ties = {{0, 3}, {1, 2}}};
    const DeviceMesh mesh(fabric, book, shape, ring);
    const int pp = mesh.coordinate().pp;
    EXPECT_EQ(mesh.pipeline({3, 0, false}).channel != nullptr, pp == 3 || pp == 0);
    EXPECT_EQ(mesh.pipeline({1, 0, false}).channel != nullptr, pp < 2);
    if (pp < 2) {
      EXPECT_NE(mesh.pipeline({1, 0, false}).channel, mesh.pipeline({0, 1, false}).channel);
    }
    EXPECT_EQ(mesh.pipeline({0, 1, true}).channel, nullptr) << "not in the topology";
    const auto pipeline = shape.group(Axis::pp, fabric.rank());
    const std::vector<int> pair{pipeline[std::min(pp, 3 - pp)], pipeline[std::max(pp, 3 - pp)]};
    EXPECT_EQ(members(mesh.tie(), fabric.rank()), pair);
  });
}

TEST(DeviceMesh, NamesItsPlace) {
  run_ranks(8, [](comm::Fabric& fabric) {
    StreamBook book;
    const DeviceMesh mesh(fabric, book, {.pp = 2, .dp_shard = 2, .tp = 2});
    const std::string places[] = {"pp0 dp0 tp0", "pp0 dp0 tp1", "pp0 dp1 tp0", "pp0 dp1 tp1",
                                  "pp1 dp0 tp0", "pp1 dp0 tp1", "pp1 dp1 tp0", "pp1 dp1 tp1"};
    EXPECT_EQ(mesh.text(), places[fabric.rank()]);
    EXPECT_EQ(mesh.dp_rank(), fabric.rank() / 2 % 2);
  });
}

TEST(DeviceMesh, RejectsAMeshOfAnotherSize) {
  run_ranks(2, [](comm::Fabric& fabric) {
    StreamBook book;
    try {
      const DeviceMesh mesh(fabric, book, {.pp = 2, .tp = 2});
      ADD_FAILURE() << "two ranks are no mesh of four";
    } catch (const ConfigError& error) {
      EXPECT_STREQ(error.what(),
                   "mesh pp = 2 x dp = 1 x tp = 2 wants 4 ranks, the run has 2; start 4 ranks or change [mesh]");
    }
  });
}

}  // namespace
}  // namespace orthant::tests
