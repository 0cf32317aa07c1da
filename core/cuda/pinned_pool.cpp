// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/cuda/pinned_pool.hpp>

#include <algorithm>
#include <bit>

namespace orthant::cuda {

PinnedPool::~PinnedPool() {
  for (auto& [size, blocks] : free_) {
    for (void* block : blocks) driver_.free_pinned(block);
  }
}

std::shared_ptr<void> PinnedPool::take(std::size_t bytes) {
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(bytes, 4096));
  void* block = nullptr;
  {
    const std::lock_guard guard(mutex_);
    auto& blocks = free_[size];
    if (!blocks.empty()) {
      block = blocks.back();
      blocks.pop_back();
    }
  }
  if (!block) block = driver_.allocate_pinned(size);
  return {block, [this, size](void* memory) {
            const std::lock_guard guard(mutex_);
            free_[size].push_back(memory);
          }};
}

}  // namespace orthant::cuda
