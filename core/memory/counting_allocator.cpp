// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/memory/counting_allocator.hpp>

#include <c10/core/CPUAllocator.h>

namespace orthant::memory {
namespace {

// In front of every block: the alignment that LibTorch promises, so that the block keeps it.
constexpr std::size_t kHeaderBytes = 64;

}  // namespace

CountingAllocator& CountingAllocator::install() {
  // Never destroyed: tensors in static storage may be freed after everything else.
  static CountingAllocator& allocator = []() -> CountingAllocator& {
    auto* made = new CountingAllocator(*c10::GetCPUAllocator());
    c10::SetCPUAllocator(made);
    return *made;
  }();
  return allocator;
}

c10::DataPtr CountingAllocator::allocate(std::size_t bytes) {
  static_assert(sizeof(Header) <= kHeaderBytes);
  if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
  auto* const base = static_cast<std::byte*>(inner_.raw_allocate(bytes + kHeaderBytes));
  new (base) Header{this, bytes};
  const std::int64_t live = live_ += static_cast<std::int64_t>(bytes);
  for (std::int64_t peak = peak_; peak < live && !peak_.compare_exchange_weak(peak, live);) {
  }
  ++allocations_;
  void* const data = base + kHeaderBytes;
  return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
}

void CountingAllocator::release(void* data) {
  if (data == nullptr) return;
  auto* const base = static_cast<std::byte*>(data) - kHeaderBytes;
  const Header header = *reinterpret_cast<const Header*>(base);
  header.owner->live_ -= static_cast<std::int64_t>(header.bytes);
  header.owner->inner_.raw_deallocate(base);
}

}  // namespace orthant::memory
