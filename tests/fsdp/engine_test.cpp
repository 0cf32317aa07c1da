// SPDX-License-Identifier: Apache-2.0
// The engine alone, on ranks that are threads, with a model made of numbers whose tasks check every weight and every
// gradient.
#include <orthant/fsdp/engine.hpp>

#include <numeric>

#include <gtest/gtest.h>
#include <orthant/core/base/error.hpp>
#include <orthant/core/stream/cpu_scheduler.hpp>
#include <orthant/tests/harness/plan/fake_group.hpp>
#include <orthant/tests/harness/plan/layer_loop.hpp>
#include <orthant/tests/harness/plan/residencies.hpp>
#include <orthant/tests/harness/run_ranks.hpp>

namespace orthant::fsdp {
namespace {

using train::Residency;

struct Case {
  int ranks = 1;
  int blocks = 3;
  std::int64_t width = 37;
  DType precision = DType::f32;
  train::Residencies residency = kLayer;
  int alternating_buffers = 2;
  bool keeps_weights = false;
  DType wire = DType::f32;
  int replicas = 1;  ///< of `ranks`
};

void train(comm::Fabric& fabric, const Case& c) {
  // Ranks of a shard group are neighbours, as in the mesh.
  const int shards = c.ranks / c.replicas;
  std::unique_ptr<comm::Collectives> gather, reduce, replica;
  for (int group = 0; group < c.replicas; ++group) {
    std::vector<int> members(static_cast<std::size_t>(shards));
    std::iota(members.begin(), members.end(), group * shards);
    if (auto made = fabric.make_collectives("gather", members)) gather = std::move(made);
    if (auto made = fabric.make_collectives("reduce", members)) reduce = std::move(made);
  }
  for (int shard = 0; c.replicas > 1 && shard < shards; ++shard) {
    std::vector<int> members;
    for (int group = 0; group < c.replicas; ++group) members.push_back(group * shards + shard);
    if (auto made = fabric.make_collectives("replica", members)) replica = std::move(made);
  }
  tests::ConsumingGroup consuming(*reduce);

  tests::NumberModel model(c.blocks, c.width);
  stream::CpuScheduler scheduler({.deadline = std::chrono::seconds(30), .on_failure = [&](std::exception_ptr error) {
                                    try {
                                      std::rethrow_exception(error);
                                    } catch (const std::exception& e) {
                                      fabric.abort(e.what());
                                    }
                                  }});
  const auto compute = scheduler.add_stream("compute", stream::StreamKind::compute);
  const Lanes lanes{.gather = {gather.get(), scheduler.add_stream("gather", stream::StreamKind::request)},
                    .reduce = {c.keeps_weights ? reduce.get() : &consuming,
                               scheduler.add_stream("reduce", stream::StreamKind::request)},
                    .replica = {replica.get(), scheduler.add_stream("replica", stream::StreamKind::request)},
                    .compute = compute};
  Engine engine(model.table, model.store, scheduler, lanes, tests::number_weights(),
                {.precision = c.precision,
                 .residency = c.residency,
                 .keeps_weights = c.keeps_weights,
                 .wire = c.wire,
                 .alternating_buffers = c.alternating_buffers});
  tests::LayerLoop loop({.model = model,
                         .scheduler = scheduler,
                         .compute = compute,
                         .lifecycle = engine,
                         .sync = engine,
                         .store = engine,
                         .gradients = c.residency.gradients,
                         .rank = fabric.rank(),
                         .ranks = fabric.size(),
                         .unused = [](const model::Parameter& parameter) {
                           return parameter.unit == UnitId{2} && parameter.region.offset > 0;
                         }});
  const auto places = [&] {  // of all weights, gradients and states
    std::vector<const void*> all;
    for (const auto& shard : engine.shards()) {
      for (const auto& tensor : {shard.master, shard.weight, shard.grad, shard.exp_avg, shard.exp_avg_sq})
        all.push_back(tensor.const_data_ptr());
    }
    for (const auto& layer : model.layers) {
      for (const auto* parameter : layer.parameters) {
        all.push_back(parameter->weight.const_data_ptr());
        all.push_back(parameter->grad.const_data_ptr());
      }
    }
    return all;
  };
  const auto at_first = places();
  for (int microbatches : {3, 1, 2}) loop.step(microbatches);
  loop.validate();
  scheduler.drain();
  EXPECT_EQ(places(), at_first) << "memory is allocated once";
}

TEST(Engine, GathersWholeWeightsAndReducesToTheSerialSum) {
  for (const train::Residencies& residency :
       {kLayer, kChunk, {Residency::layer, Residency::chunk}, {Residency::chunk, Residency::layer}}) {
    for (int ranks : {1, 2, 3, 4, 8}) {
      const Case c{.ranks = ranks, .residency = residency};
      tests::run_ranks(ranks, [&](comm::Fabric& fabric) { train(fabric, c); });
    }
  }
}

TEST(Engine, SlicesInPlaceOfWholeWeightsAndOfGradientsThatStay) {
  for (const Residency gradients : {Residency::chunk, Residency::layer}) {
    for (const DType precision : {DType::f32, DType::bf16}) {
      for (int ranks : {1, 2, 3}) {
        const Case c{
            .ranks = ranks, .precision = precision, .residency = {Residency::chunk, gradients}, .keeps_weights = true};
        tests::run_ranks(ranks, [&](comm::Fabric& fabric) { train(fabric, c); });
      }
    }
  }
}

TEST(Engine, SumsOverReplicasOfShardGroups) {
  for (const train::Residencies& residency : {kLayer, kChunk}) {
    for (const auto& [ranks, replicas] : {std::pair{2, 2}, {4, 2}, {6, 3}, {6, 2}}) {
      const Case c{.ranks = ranks, .residency = residency, .replicas = replicas};
      tests::run_ranks(ranks, [&](comm::Fabric& fabric) { train(fabric, c); });
    }
  }
}

/// The gradients are small whole numbers, which bf16 holds exactly.
TEST(Engine, GradientsTravelAsBf16AndAreSummedInFp32) {
  for (const train::Residencies& residency : {kLayer, kChunk}) {
    for (const DType precision : {DType::f32, DType::bf16}) {
      const Case c{.ranks = 3, .precision = precision, .residency = residency, .wire = DType::bf16};
      tests::run_ranks(c.ranks, [&](comm::Fabric& fabric) { train(fabric, c); });
    }
  }
  const Case whole{.ranks = 3, .residency = kChunk, .keeps_weights = true, .wire = DType::bf16};
  tests::run_ranks(whole.ranks, [&](comm::Fabric& fabric) { train(fabric, whole); });
}

TEST(Engine, OddCountsOfBlocksAndElements) {
  for (int blocks : {0, 1, 2, 5}) {
    for (std::int64_t width : {1, 43, 129}) {
      const Case c{.ranks = 3, .blocks = blocks, .width = width};
      tests::run_ranks(c.ranks, [&](comm::Fabric& fabric) { train(fabric, c); });
    }
  }
}

TEST(Engine, EveryPrecisionAndOneAlternatingBuffer) {
  for (DType precision : {DType::bf16, DType::f64}) {
    for (const train::Residencies& residency : {kLayer, kChunk}) {
      const Case c{.ranks = 2, .precision = precision, .residency = residency};
      tests::run_ranks(c.ranks, [&](comm::Fabric& fabric) { train(fabric, c); });
    }
  }
  const Case one{.ranks = 2, .alternating_buffers = 1};
  tests::run_ranks(one.ranks, [&](comm::Fabric& fabric) { train(fabric, one); });
}

TEST(Engine, ShardsAreOneOverDegreeOfEveryUnit) {
  tests::NumberModel model(2, 37);
  stream::CpuScheduler scheduler;
  tests::IdleGroup group(2, 3);
  const comm::Lane lane{&group, scheduler.add_stream("lane", stream::StreamKind::request)};
  Engine engine(model.table, model.store, scheduler, {lane, lane}, tests::number_weights(), {.precision = DType::bf16});
  ASSERT_EQ(engine.shards().size(), model.table.units().size());
  for (const auto& shard : engine.shards()) {
    const auto& unit = model.table.unit(shard.unit);
    EXPECT_EQ(shard.master.numel(), unit.shard_numel(3));
    EXPECT_EQ(shard.begin, 2 * unit.shard_numel(3));
    EXPECT_EQ(shard.weight.scalar_type(), at::kBFloat16);
    EXPECT_EQ(shard.master.scalar_type(), at::kFloat);
    EXPECT_EQ(shard.decays, unit.decays);
  }
}

TEST(Engine, ReducingWithoutAContributionIsABug) {
  tests::NumberModel model(1, 5);
  stream::CpuScheduler scheduler;
  tests::IdleGroup group(0, 1);
  const comm::Lane lane{&group, scheduler.add_stream("lane", stream::StreamKind::request)};
  Engine engine(model.table, model.store, scheduler, {lane, lane}, tests::number_weights(), {});
  EXPECT_THROW(engine.reduce(UnitId{1}, true), InternalError);
}

}  // namespace
}  // namespace orthant::fsdp
