// SPDX-License-Identifier: Apache-2.0
// The README's code is the example's, word for word, so it compiles and runs.
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

namespace {

std::string between(const std::string& path, const std::string& begin, const std::string& end) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  const std::string whole = text.str();
  const auto first = whole.find(begin);
  if (first == std::string::npos) return "";
  const auto from = first + begin.size();
  return whole.substr(from, whole.find(end, from) - from);
}

TEST(Readme, ShowsTheExamplesOwnLines) {
  const std::string folder = ORTHANT_FSDP_FOLDER;
  std::string code = between(folder + "/examples/user_module.cpp", "  // ---\n", "  // ---\n");
  ASSERT_NE(code, "");
  for (auto at = code.find("\n  "); at != std::string::npos; at = code.find("\n  ", at + 1)) code.erase(at + 1, 2);
  EXPECT_EQ(code.substr(2), between(folder + "/modules/README.md", "```cpp\n", "```\n"));
}

}  // namespace
