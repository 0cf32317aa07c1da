// SPDX-License-Identifier: Apache-2.0
// The module as it is built, on whatever machine this is.
#include <gtest/gtest.h>

#include <fstream>

#include <orthant/core/cuda/open_module.hpp>

namespace orthant::cuda {
namespace {

TEST(OpenModule, SaysWhereItLookedOrWhyAFileDoesNotLoad) {
  const auto path = std::filesystem::temp_directory_path() / "orthant_not_a_module.so";
  std::ofstream(path) << "text";
  const auto found = open_module(path);
  std::filesystem::remove(path);
  ASSERT_FALSE(found);
  EXPECT_NE(found.why().find("orthant_not_a_module.so does not load"), std::string::npos) << found.why();
}

TEST(OpenModule, FindsTheModuleOfThisBuildAndSaysWhatDevicesThereAre) {
  const auto found = open_module();
#if ORTHANT_HAS_CUDA
  if (found) {
    ASSERT_FALSE(found->devices.empty());
    EXPECT_FALSE(found->devices[0].name.empty());
    EXPECT_FALSE(found->module->make_driver(0, std::chrono::seconds(1))->device_identity().empty());
  } else {
    EXPECT_EQ(found.why().rfind("no CUDA device", 0), 0u) << found.why();
  }
#else
  ASSERT_FALSE(found);
  EXPECT_NE(found.why().find("liborthant_cuda.so is neither in"), std::string::npos) << found.why();
#endif
}

}  // namespace
}  // namespace orthant::cuda
