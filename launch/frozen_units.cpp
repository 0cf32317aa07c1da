// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/frozen_units.hpp>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/config/diagnostic.hpp>

namespace orthant::launch {
namespace {

constexpr std::string_view kBlocks = "layers.";

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// "3" or "0-1".
std::optional<std::pair<std::int64_t, std::int64_t>> range(std::string_view text) {
  const auto dash = text.find('-');
  const auto first = number(text.substr(0, dash));
  const auto last = dash == text.npos ? first : number(text.substr(dash + 1));
  if (!first || !last) return std::nullopt;
  return std::pair(*first, *last);
}

}  // namespace

bool FrozenUnits::all(bool tied_embeddings) const {
  return embedding && (head || tied_embeddings) && norms && std::ranges::all_of(blocks, [](bool b) { return b; });
}

FrozenUnits parse_frozen_units(const std::vector<std::string>& names, std::int64_t layers, bool tied_embeddings) {
  FrozenUnits frozen{.blocks = std::vector<bool>(static_cast<std::size_t>(layers), false)};
  for (const std::string& name : names) {
    if (name == "embedding") {
      frozen.embedding = true;
    } else if (name == "norms") {
      frozen.norms = true;
    } else if (name == "head") {
      if (tied_embeddings)
        throw ConfigError("\"head\" is the embedding's weight, since embeddings are tied; use \"embedding\"");
      frozen.head = true;
    } else if (const auto blocks =
                   name.starts_with(kBlocks) ? range(std::string_view(name).substr(kBlocks.size())) : std::nullopt) {
      const auto [first, last] = *blocks;
      if (first < 0 || last < first || last >= layers)
        throw ConfigError(fmt::format("\"{}\" is not within layers.0-{}", name, layers - 1));
      std::fill(frozen.blocks.begin() + first, frozen.blocks.begin() + last + 1, true);
    } else {
      const auto nearest = config::nearest_name(name, {"embedding", "head", "norms"});
      throw ConfigError(
          fmt::format("\"{}\" is no unit; use \"embedding\", \"head\", \"norms\", \"layers.3\" or \"layers.0-1\"{}",
                      name, nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest)));
    }
  }
  return frozen;
}

}  // namespace orthant::launch
