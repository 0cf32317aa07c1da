// SPDX-License-Identifier: Apache-2.0
// Strict UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace orthant::data {

/// Byte offset of the first sequence that is not UTF-8, or nothing if all of `text` is.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

}  // namespace orthant::data
