// SPDX-License-Identifier: Apache-2.0
// What the engine will allocate is what it does allocate, to the byte; 18 and 16 bytes a parameter.
#include <orthant/dp/memory.hpp>

#include <gtest/gtest.h>

#include <orthant/core/memory/counting_allocator.hpp>
#include <orthant/core/stream/virtual_clock.hpp>
#include <orthant/tests/harness/plan/fake_group.hpp>

namespace orthant::dp {
namespace {

memory::CountingAllocator& allocator = memory::CountingAllocator::install();

shard::ParameterTable table_of(std::int64_t width, bool frozen) {
  shard::ParameterTable table;
  for (int id = 0; id < 3; ++id) {
    table.add_unit(
        {.id = UnitId{id}, .name = "unit", .frozen_steps = frozen && id == 1 ? shard::FlatUnit::kAlways : 0});
    table.add_region(UnitId{id}, {{"weight", shard::replicate({31 + id, width})}});
  }
  return table;
}

TEST(StateBytes, AreWhatTheEngineAllocates) {
  for (const DType precision : {DType::f32, DType::bf16, DType::f64}) {
    for (const bool frozen : {false, true}) {
      for (const DType moments : {DType::f32, DType::bf16}) {
        const Options options{.precision = precision, .moments = moments};
        const auto table = table_of(37, frozen);
        model::ParameterStore store;
        stream::VirtualClock clock;
        orthant::tests::IdleGroup group(1, 2);
        const auto before = allocator.live_bytes();
        const Engine engine(
            table, store, clock, {&group, clock.add_stream("dp", stream::StreamKind::request)},
            [](const shard::FlatUnit&, std::int64_t, at::Tensor) {}, options);
        EXPECT_EQ(allocator.live_bytes() - before, state_bytes(table, options).total())
            << name_of(precision) << " frozen " << frozen;
      }
    }
  }
}

TEST(StateBytes, AParameterTakes18BytesBesideBf16And16OfFp32) {
  const auto table = table_of(1 << 13, false);
  std::int64_t parameters = 0;
  for (const auto& unit : table.units()) parameters += unit.numel;
  EXPECT_EQ(state_bytes(table, {.precision = DType::bf16}).total(), 18 * parameters);
  EXPECT_EQ(state_bytes(table, {.precision = DType::f32}).total(), 16 * parameters);
}

}  // namespace
}  // namespace orthant::dp
