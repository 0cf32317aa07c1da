// SPDX-License-Identifier: Apache-2.0
// Opens the CUDA module, when a run asks for it and not before: a CPU rank never loads CUDA.
#pragma once

#include <filesystem>

#include <orthant/core/base/result.hpp>
#include <orthant/core/cuda/module.hpp>

namespace orthant::cuda {

struct OpenedModule {
  const Module* module = nullptr;   ///< lives until the process ends: LibTorch's CUDA half cannot be unloaded
  std::vector<DeviceInfo> devices;  ///< at least one
};

/// Looks for liborthant_cuda.so beside this program, in the folder above it and in ../lib.
/// returns why not: no such file (and where it was looked for), it does not load, another version, no CUDA device.
Result<OpenedModule> open_module();
/// The module at `path`.
Result<OpenedModule> open_module(const std::filesystem::path& path);

}  // namespace orthant::cuda
