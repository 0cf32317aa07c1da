// SPDX-License-Identifier: Apache-2.0
// liborthant_cuda.so: all that links CUDA and NCCL.
#include <orthant/core/cuda/module.hpp>

#include <orthant/core/cuda/check.hpp>
#include <orthant/core/cuda/real_driver.hpp>

namespace orthant::cuda {
namespace {

class CudaModule final : public Module {
 public:
  std::vector<DeviceInfo> devices() const override {
    int count = 0;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    std::vector<DeviceInfo> found;
    for (int index = 0; index < count; ++index) {
      cudaDeviceProp properties;
      check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
      found.push_back({.index = index, .name = properties.name, .memory_bytes = properties.totalGlobalMem});
    }
    return found;
  }

  std::unique_ptr<Driver> make_driver(int device, std::chrono::milliseconds nccl_timeout) const override {
    return std::make_unique<RealDriver>(device, nccl_timeout);
  }
};

}  // namespace
}  // namespace orthant::cuda

extern "C" __attribute__((visibility("default"))) const orthant::cuda::Module* orthant_cuda_module(int version) {
  static const orthant::cuda::CudaModule module;
  return version == orthant::cuda::kModuleVersion ? &module : nullptr;
}
