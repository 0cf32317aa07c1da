// SPDX-License-Identifier: Apache-2.0
// The engine alone, on ranks that are threads, with a model made of numbers whose tasks check every weight and every
// gradient.
#include <orthant/dp/engine.hpp>

#include <gtest/gtest.h>
#include <orthant/core/base/error.hpp>
#include <orthant/core/stream/cpu_scheduler.hpp>
#include <orthant/tests/harness/plan/fake_group.hpp>
#include <orthant/tests/harness/plan/layer_loop.hpp>
#include <orthant/tests/harness/run_ranks.hpp>

namespace orthant::dp {
namespace {

void train(comm::Fabric& fabric, int blocks, std::int64_t width, Options options) {
  const auto group = fabric.make_collectives("reduce", fabric.all_ranks());
  tests::NumberModel model(blocks, width);
  stream::CpuScheduler scheduler({.deadline = std::chrono::seconds(30), .on_failure = [&](std::exception_ptr error) {
                                    try {
                                      std::rethrow_exception(error);
                                    } catch (const std::exception& e) {
                                      fabric.abort(e.what());
                                    }
                                  }});
  const auto compute = scheduler.add_stream("compute", stream::StreamKind::compute);
  const comm::Lane lane{group.get(), scheduler.add_stream("reduce", stream::StreamKind::request)};
  Engine engine(model.table, model.store, scheduler, lane, tests::number_weights(), options);
  tests::LayerLoop loop({.model = model,
                         .scheduler = scheduler,
                         .compute = compute,
                         .lifecycle = engine,
                         .sync = engine,
                         .store = engine,
                         .rank = fabric.rank(),
                         .ranks = fabric.size()});
  for (int microbatches : {3, 1, 2}) loop.step(microbatches);
  loop.validate();
  scheduler.drain();
}

TEST(Engine, ReducesToTheSerialSumInBucketsOfAnySize) {
  for (int ranks : {1, 2, 3, 4, 8}) {
    for (std::int64_t bucket_bytes : {1, 2000, 1 << 20}) {
      tests::run_ranks(ranks, [&](comm::Fabric& fabric) { train(fabric, 3, 37, {.bucket_bytes = bucket_bytes}); });
    }
  }
}

TEST(Engine, EveryPrecisionAndOddSizes) {
  for (DType precision : {DType::f32, DType::bf16, DType::f64}) {
    for (int blocks : {0, 1, 4}) {
      tests::run_ranks(
          2, [&](comm::Fabric& fabric) { train(fabric, blocks, 43, {.precision = precision, .bucket_bytes = 1500}); });
    }
  }
}

TEST(Engine, OneReplicaCountsAndEveryReplicaStepsTheWhole) {
  for (int rank : {0, 1}) {
    tests::NumberModel model(2, 37);
    stream::CpuScheduler scheduler;
    tests::IdleGroup group(rank, 2);
    const comm::Lane lane{&group, scheduler.add_stream("lane", stream::StreamKind::request)};
    Engine engine(model.table, model.store, scheduler, lane, tests::number_weights(), {});
    ASSERT_EQ(engine.shards().size(), model.table.units().size());
    for (const auto& shard : engine.shards()) {
      EXPECT_EQ(shard.begin, 0);
      EXPECT_EQ(shard.master.numel(), model.table.unit(shard.unit).padded_numel(1));
      EXPECT_EQ(shard.counted, rank == 0);
      EXPECT_TRUE(shard.weight.is_same(shard.master));
    }
  }
}

TEST(Engine, ContributingAfterTheReductionIsABug) {
  tests::NumberModel model(1, 5);
  stream::CpuScheduler scheduler;
  tests::IdleGroup group(0, 1);
  const comm::Lane lane{&group, scheduler.add_stream("lane", stream::StreamKind::request)};
  Engine engine(model.table, model.store, scheduler, lane, tests::number_weights(), {});
  EXPECT_THROW(engine.reduce(UnitId{1}, true), InternalError);
  EXPECT_TRUE(engine.contribute(UnitId{1}).overwrite);
  EXPECT_FALSE(engine.contribute(UnitId{1}).overwrite);
  engine.reduce(UnitId{1}, true);
  EXPECT_THROW(engine.contribute(UnitId{1}), InternalError);
  EXPECT_THROW(engine.reduce(UnitId{1}, true), InternalError);
}

}  // namespace
}  // namespace orthant::dp
