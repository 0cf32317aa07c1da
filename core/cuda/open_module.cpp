// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/cuda/open_module.hpp>

#include <dlfcn.h>

#include <string>
#include <utility>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>

namespace orthant::cuda {

Result<OpenedModule> open_module() {
  constexpr const char* kName = "liborthant_cuda.so";
  std::error_code error;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const auto& candidate : {folder / kName, folder.parent_path() / kName, folder.parent_path() / "lib" / kName}) {
    if (std::filesystem::exists(candidate, error)) return open_module(candidate);
  }
  return Failure{fmt::format(
      "{} is neither in {} nor beside it; build with nvcc installed (ORTHANT_CUDA=ON), or use device.kind = \"cpu\"",
      kName, folder.string())};
}

Result<OpenedModule> open_module(const std::filesystem::path& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return Failure{fmt::format("{} does not load: {}", path.string(), dlerror())};
  const auto entry = reinterpret_cast<ModuleEntry>(dlsym(library, kModuleSymbol));
  const Module* module = entry ? entry(kModuleVersion) : nullptr;
  if (!module) return Failure{fmt::format("{} is not of this build; build both again", path.string())};
  try {
    OpenedModule opened{module, module->devices()};
    if (opened.devices.empty()) return Failure{"no CUDA device"};
    return opened;
  } catch (const InternalError& reason) {
    return Failure{fmt::format("no CUDA device: {}", reason.what())};
  }
}

}  // namespace orthant::cuda
