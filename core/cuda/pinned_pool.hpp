// SPDX-License-Identifier: Apache-2.0
// PinnedPool: page-locked host memory to use again, since locking pages takes milliseconds.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <orthant/core/cuda/driver.hpp>

namespace orthant::cuda {

class PinnedPool {
 public:
  explicit PinnedPool(MemoryDriver& driver) : driver_(driver) {}
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  /// At least `bytes`; back in the pool when the last copy of the pointer goes, which must be before the pool does.
  std::shared_ptr<void> take(std::size_t bytes);

 private:
  MemoryDriver& driver_;
  std::mutex mutex_;
  std::map<std::size_t, std::vector<void*>> free_;  ///< by size, a power of two
};

}  // namespace orthant::cuda
