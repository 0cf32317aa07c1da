// SPDX-License-Identifier: Apache-2.0
// What liborthant_cuda.so offers: devices, and a driver for one of them. Schedulers and fabrics are built over the
// driver in the binary that opened it (CudaScheduler, make_device_fabric). Opening it also loads LibTorch's CUDA half,
// so that at::empty(sizes, at::Device(at::kCUDA, index)) works from then on.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <orthant/core/cuda/driver.hpp>

namespace orthant::cuda {

struct DeviceInfo {
  int index = 0;
  std::string name;
  std::size_t memory_bytes = 0;
};

class Module {
 public:
  virtual ~Module() = default;
  /// Throws InternalError, with the call's name and CUDA's reason, where there is no device or no driver for it.
  virtual std::vector<DeviceInfo> devices() const = 0;
  /// nccl_timeout  for calls that NCCL completes in the background, above all init().
  virtual std::unique_ptr<Driver> make_driver(int device, std::chrono::milliseconds nccl_timeout) const = 0;
};

/// Changes with this header and driver.hpp, so that a module of another build is refused.
inline constexpr int kModuleVersion = 1;
inline constexpr const char* kModuleSymbol = "orthant_cuda_module";
/// The one symbol that the library exports: null for another version than its own. The module stays the library's.
using ModuleEntry = const Module* (*)(int version);

}  // namespace orthant::cuda
