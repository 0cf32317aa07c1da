// SPDX-License-Identifier: Apache-2.0
// JSON from files that may come from anywhere.
#pragma once

#include <string_view>

#include <nlohmann/json.hpp>

namespace orthant::ckpt {

/// Parses JSON that has no key twice in one object (the parser alone would keep the last one) and is not nested deeper
/// than 8. Throws  std::exception, whose text goes on from "the header …".
nlohmann::json parse_strictly(std::string_view text);

}  // namespace orthant::ckpt
