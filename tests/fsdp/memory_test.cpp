// SPDX-License-Identifier: Apache-2.0
// The table of residencies: what the engine will allocate is what it does allocate, to the byte; and bytes a parameter
// of the known strategies, where a model is large enough for padding not to show.
#include <orthant/fsdp/memory.hpp>

#include <gtest/gtest.h>

#include <orthant/core/memory/counting_allocator.hpp>
#include <orthant/core/stream/virtual_clock.hpp>
#include <orthant/tests/harness/plan/fake_group.hpp>
#include <orthant/tests/harness/plan/residencies.hpp>

namespace orthant::fsdp {
namespace {

using memory::StateBytes;
using train::Residency;

memory::CountingAllocator& allocator = memory::CountingAllocator::install();

/// An embedding, blocks of uneven size, norms. frozen  the first block never trains.
shard::ParameterTable table_of(std::int64_t width, bool frozen = false) {
  shard::ParameterTable table;
  const auto add = [&](int id, const char* name, shard::UnitKind kind, std::int64_t rows) {
    table.add_unit({.id = UnitId{id},
                    .name = name,
                    .kind = kind,
                    .frozen_steps = frozen && id == 1 ? shard::FlatUnit::kAlways : 0});
    table.add_region(UnitId{id}, {{name, shard::replicate({rows, width})}});
  };
  add(0, "embedding", shard::UnitKind::embedding, 97);
  add(1, "layers.0", shard::UnitKind::block, 60);
  add(2, "layers.1", shard::UnitKind::block, 71);
  add(3, "layers.2", shard::UnitKind::block, 60);
  add(5, "norms", shard::UnitKind::norms, 4);
  return table;
}

TEST(StateBytes, AreWhatTheEngineAllocates) {
  for (const int degree : {1, 2, 3, 5}) {
    for (const DType precision : {DType::f32, DType::bf16, DType::f64}) {
      for (const auto& [residency, keeps] :
           {std::pair{kChunk, true}, {kWeightsStay, true}, {kChunk, false}, {kLayer, false}}) {
        for (const bool frozen : {false, true}) {
          for (const DType narrow : {DType::f32, DType::bf16}) {
            const Options options{.precision = precision,
                                  .residency = residency,
                                  .keeps_weights = keeps,
                                  .wire = narrow,
                                  .moments = narrow};
            const auto table = table_of(37, frozen);
            model::ParameterStore store;
            stream::VirtualClock clock;
            orthant::tests::IdleGroup group(degree - 1, degree);
            const comm::Lane lane{&group, clock.add_stream("dp", stream::StreamKind::request)};
            const auto before = allocator.live_bytes();
            const Engine engine(
                table, store, clock, {.gather = lane, .reduce = lane, .replica = degree % 2 == 0 ? lane : comm::Lane{}},
                [](const shard::FlatUnit&, std::int64_t, at::Tensor) {}, options);
            EXPECT_EQ(allocator.live_bytes() - before, state_bytes(table, options, degree).total())
                << "degree " << degree << " " << name_of(precision) << " keeps " << keeps << " frozen " << frozen;
          }
        }
      }
    }
  }
}

/// Hundredths of a byte a parameter, buffers that blocks share left out.
std::int64_t per_parameter(const Options& options, int degree) {
  auto table = table_of(1 << 14);
  std::int64_t parameters = 0;
  for (const auto& unit : table.units()) parameters += unit.numel;
  auto bytes = state_bytes(table, options, degree);
  if (!options.keeps_weights && options.residency.weights == Residency::layer) bytes.buffers = 0;
  return 100 * bytes.total() / parameters;
}

TEST(StateBytes, AParameterTakesWhatItsZeroStageSays) {
  const int n = 4;
  const Options stage1{.precision = DType::bf16, .residency = kChunk, .keeps_weights = true};
  EXPECT_EQ(per_parameter(stage1, n), 100 * 6 + 1200 / n);
  const Options chunk{.precision = DType::bf16, .residency = kChunk};
  EXPECT_EQ(per_parameter(chunk, n), 100 * 6 + 1800 / n);
  const Options layer{.precision = DType::bf16, .residency = kLayer};
  EXPECT_EQ(per_parameter(layer, n), 1800 / n);
  const Options small{.precision = DType::bf16, .residency = kLayer, .moments = DType::bf16};
  EXPECT_EQ(per_parameter(small, n), 1400 / n);
  EXPECT_EQ(per_parameter({.residency = kLayer}, n), 1600 / n);
  EXPECT_EQ(per_parameter({.residency = kChunk, .keeps_weights = true}, n), 100 * 8 + 800 / n);
  EXPECT_EQ(per_parameter({.residency = kChunk}, n), 100 * 8 + 1600 / n);
}

}  // namespace
}  // namespace orthant::fsdp
