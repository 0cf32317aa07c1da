// SPDX-License-Identifier: Apache-2.0
// What is counted: every tensor's bytes while it lives, from any thread, views not twice, and memory still aligned.
#include <orthant/core/memory/counting_allocator.hpp>

#include <cstdint>
#include <thread>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

namespace orthant::memory {
namespace {

CountingAllocator& memory = CountingAllocator::install();

at::Tensor bytes(std::int64_t count) { return at::empty({count}, at::TensorOptions(at::kByte)); }

TEST(CountingAllocator, CountsWhatTensorsHoldAndItsPeak) {
  EXPECT_EQ(&CountingAllocator::install(), &memory);
  const auto before = memory.live_bytes();
  const auto made = memory.allocations();
  memory.reset_peak();
  auto a = bytes(1000);
  {
    const auto b = bytes(70'001);
    EXPECT_EQ(memory.live_bytes() - before, 71'001);
  }
  const auto view = a.narrow(0, 10, 20);
  EXPECT_EQ(memory.live_bytes() - before, 1000) << "a view is no memory";
  EXPECT_EQ(memory.peak_bytes() - before, 71'001);
  memory.reset_peak();
  EXPECT_EQ(memory.peak_bytes() - before, 1000);
  a.reset();
  EXPECT_EQ(memory.live_bytes() - before, 1000) << "the view holds it";
  EXPECT_EQ(memory.allocations() - made, 2);
}

TEST(CountingAllocator, AnEmptyTensorHoldsNothingAndBlocksAreAligned) {
  const auto before = memory.live_bytes();
  const auto nothing = bytes(0);
  EXPECT_EQ(memory.live_bytes(), before);
  for (int size : {1, 63, 64, 65, 4095, 1 << 20}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes(size).data_ptr()) % 64, 0u) << size;
  }
  auto* const raw = memory.raw_allocate(100);
  EXPECT_EQ(memory.live_bytes() - before, 100);
  memory.raw_deallocate(raw);
  EXPECT_EQ(memory.live_bytes(), before);
}

TEST(CountingAllocator, ThreadsShareOneCount) {
  const auto before = memory.live_bytes();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 500; ++i) {
        const auto a = bytes(64 + i), b = bytes(2 * i);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(memory.live_bytes(), before);
}

TEST(CountingAllocator, ProductsInEveryPrecisionLeaveNothingBehind) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const auto a = at::ones({48, 96}, type), b = at::ones({80, 96}, type);
    static_cast<void>(at::mm(a, b.t()));  // a library may keep what it made for its first call
    const auto before = memory.live_bytes();
    const auto c = at::mm(a, b.t());
    EXPECT_EQ(memory.live_bytes() - before, static_cast<std::int64_t>(c.nbytes())) << at::toString(type);
    EXPECT_EQ(c[3][5].item<double>(), 96) << at::toString(type);
  }
}

}  // namespace
}  // namespace orthant::memory
