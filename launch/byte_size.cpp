// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/byte_size.hpp>

#include <charconv>
#include <cmath>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace orthant::launch {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr Unit kUnits[] = {{"B", 1},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
                           {"kB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12}};

}  // namespace

std::optional<std::int64_t> parse_byte_size(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  while (text.starts_with(' ')) text.remove_prefix(1);
  for (const Unit& unit : kUnits) {
    const double bytes = number * unit.bytes;
    if (text == unit.name && bytes >= 1 && bytes < 0x1p62) return static_cast<std::int64_t>(bytes);
  }
  return std::nullopt;
}

std::string byte_units() {
  std::vector<std::string_view> names;
  for (const Unit& unit : kUnits) names.push_back(unit.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string format_bytes(std::int64_t bytes) {
  const auto size = static_cast<double>(bytes);
  const Unit* unit = &kUnits[0];
  while (unit != &kUnits[4] && std::abs(size) >= 1024 * unit->bytes) ++unit;
  return unit == &kUnits[0] ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", size / unit->bytes, unit->name);
}

}  // namespace orthant::launch
