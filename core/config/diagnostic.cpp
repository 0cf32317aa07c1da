// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/config/diagnostic.hpp>

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

namespace orthant::config {
namespace {

constexpr const char* kOverride = "--set";

std::string place(const Source& source) {
  if (source.is_default) return source.file + " (default)";
  if (source.column > 0) return fmt::format("{}:{}:{}", source.file, source.line, source.column);
  return source.line > 0 ? fmt::format("{}:{}", source.file, source.line) : source.file;
}

/// File first, then overrides, then defaults.
std::tuple<int, int, int> order(const Source& source) {
  const int kind = source.is_default ? 2 : (source.file == kOverride ? 1 : 0);
  return {kind, source.line, source.column};
}

}  // namespace

Source from_override() {
  Source source;
  source.file = kOverride;
  return source;
}

std::string format(const Diagnostic& diagnostic) {
  std::string text = place(diagnostic.source) + ": ";
  if (!diagnostic.key.empty()) {
    text += diagnostic.key;
    if (!diagnostic.found.empty()) text += " = " + diagnostic.found;
    text += ": ";
  }
  text += diagnostic.allowed;
  if (!diagnostic.nearest.empty()) text += fmt::format("; did you mean {}?", diagnostic.nearest);
  return text;
}

std::string format_diagnostics(std::vector<Diagnostic> diagnostics) {
  std::stable_sort(diagnostics.begin(), diagnostics.end(),
                   [](const Diagnostic& a, const Diagnostic& b) { return order(a.source) < order(b.source); });
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) text += format(diagnostic) + "\n";
  return text;
}

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) previous[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int replace = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, replace});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) current[j] = std::min(current[j], before[j - 2] + 1);
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

std::string nearest_name(std::string_view typo, const std::vector<std::string>& names) {
  std::string best;
  int best_distance = std::max(2, static_cast<int>(typo.size()) / 3) + 1;
  for (const std::string& name : names) {
    const int distance = edit_distance(typo, name);
    if (distance >= best_distance || distance >= static_cast<int>(name.size())) continue;
    best = name;
    best_distance = distance;
  }
  return best;
}

}  // namespace orthant::config
