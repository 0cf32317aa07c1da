// SPDX-License-Identifier: Apache-2.0
// CountingAllocator: what LibTorch's tensors on the CPU hold, byte by byte, as they hold it. It wraps the allocator
// that LibTorch has; a block carries its size in front of it, so that freeing needs nothing but the address. One a
// process, because LibTorch has one CPU allocator a process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include <c10/core/Allocator.h>

namespace orthant::memory {

class CountingAllocator final : public c10::Allocator {
 public:
  /// Puts the counting allocator before LibTorch's own and returns it; later calls return the same one. Tensors made
  /// before are not counted, then or when they go. Before other threads make tensors.
  static CountingAllocator& install();

  std::int64_t live_bytes() const { return live_.load(); }
  std::int64_t peak_bytes() const { return peak_.load(); }
  /// Blocks that were ever made.
  std::int64_t allocations() const { return allocations_.load(); }
  /// The peak counts from what is live now. Only while no other thread makes tensors.
  void reset_peak() { peak_ = live_.load(); }

  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  struct Header {
    CountingAllocator* owner;
    std::size_t bytes;
  };

  explicit CountingAllocator(c10::Allocator& inner) : inner_(inner) {}
  static void release(void* data);

  c10::Allocator& inner_;
  std::atomic<std::int64_t> live_ = 0;
  std::atomic<std::int64_t> peak_ = 0;
  std::atomic<std::int64_t> allocations_ = 0;
};

}  // namespace orthant::memory
