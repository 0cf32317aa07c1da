// SPDX-License-Identifier: Apache-2.0
// Amounts of memory as people write and read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace orthant::launch {

/// "2GiB", "1.5 GiB", "800MB", "4096B": a number and one of the units in byte_units(). None: it is not that, or not
/// above zero.
std::optional<std::int64_t> parse_byte_size(std::string_view text);
/// "B, KiB, MiB, GiB, TiB, kB, MB, GB, TB"
std::string byte_units();
/// "12.3 MiB"
std::string format_bytes(std::int64_t bytes);

}  // namespace orthant::launch
