// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/doctor.hpp>

#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/version.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/cuda/open_module.hpp>

namespace orthant::launch {
namespace {

const char* instruction_set() {
#if defined(__AVX512BF16__)
  return "AVX-512 with bf16";
#elif defined(__AVX512F__)
  return "AVX-512";
#elif defined(__AVX2__)
  return "AVX2";
#else
  return "baseline";
#endif
}

}  // namespace

int doctor_command(bool json) {
  nlohmann::ordered_json facts{{"libtorch", TORCH_VERSION},
                               {"instruction_set", instruction_set()},
                               {"cores", std::thread::hardware_concurrency()}};
  const auto module = cuda::open_module();
  facts["cuda"] = module ? fmt::format("{} device(s)", module->devices.size()) : module.why();
  facts["cuda_note"] =
      "the CUDA and NCCL back ends are compiled and tested through a recording driver; they have not been run on a GPU";
  if (json) {
    fmt::print("{}\n", facts.dump(2));
  } else {
    for (const auto& [key, value] : facts.items())
      fmt::print("{:<16} {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return static_cast<int>(ExitCode::done);
}

}  // namespace orthant::launch
