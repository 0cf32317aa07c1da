// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/ckpt/strict_json.hpp>

#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace orthant::ckpt {

using Json = nlohmann::json;

Json parse_strictly(std::string_view text) {
  std::vector<std::set<std::string>> keys_by_depth;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > 8) throw std::runtime_error("is nested too deeply");
    if (event == Json::parse_event_t::object_start) keys_by_depth.emplace_back();
    if (event == Json::parse_event_t::object_end) keys_by_depth.pop_back();
    if (event == Json::parse_event_t::key && !keys_by_depth.back().insert(parsed.get<std::string>()).second) {
      throw std::runtime_error(fmt::format("has the key \"{}\" twice", parsed.get<std::string>()));
    }
    return true;
  };
  return Json::parse(text, check);
}

}  // namespace orthant::ckpt
