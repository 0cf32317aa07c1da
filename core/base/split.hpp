// SPDX-License-Identifier: Apache-2.0
// Fields of a line.
#pragma once

#include <string_view>
#include <vector>

namespace orthant {

/// The parts between the characters `at`, one more than there are of these; views into `text`.
inline std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace orthant
