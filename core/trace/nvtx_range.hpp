// SPDX-License-Identifier: Apache-2.0
// A named range in Nsight, for as long as the object lives; next to free while no profiler is attached. A start/end
// range rather than push/pop: a collective starts on one thread and ends on another.
#pragma once

#include <cstdint>
#include <string>

namespace orthant::trace {

class [[nodiscard]] NvtxRange {
 public:
  explicit NvtxRange(const std::string& name);
  ~NvtxRange();
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;

 private:
  std::uint64_t id_;
};

}  // namespace orthant::trace
