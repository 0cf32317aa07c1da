// SPDX-License-Identifier: Apache-2.0
// Where a process runs, for people to read.
#pragma once

#include <array>
#include <string>

#include <unistd.h>

namespace orthant {

inline std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace orthant
