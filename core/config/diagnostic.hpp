// SPDX-License-Identifier: Apache-2.0
// What is wrong with a config, as data: one Diagnostic per fault, so that one run shows them all. Text is made at the
// end.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace orthant::config {

/// Where a value comes from: a line of a file, an override, or neither (the built-in default).
struct Source {
  std::string file;         ///< path as given, or "--set"
  int line = 0;             ///< from 1; 0 for an override or a default
  int column = 0;           ///< from 1; only for faults of TOML itself
  bool is_default = false;  ///< the value was not written anywhere; `file` is the config that leaves it out
};
/// The source of all overrides.
Source from_override();

struct Diagnostic {
  Source source;
  std::string key;      ///< full dotted path; empty for faults of TOML itself
  std::string found;    ///< the value as written; empty where there is none
  std::string allowed;  ///< what is wrong or allowed, in words
  std::string nearest;  ///< nearest valid name; empty if none is near
};

/// One line: "configs/x.toml:7: mesh.tp = 3: heads = 8 is not divisible by tp = 3; use tp in {1, 2, 4, 8}".
std::string format(const Diagnostic& diagnostic);

/// One entry a line: first those of the file by line, then overrides, then defaults; else in the order given.
std::string format_diagnostics(std::vector<Diagnostic> diagnostics);

/// Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`.
int edit_distance(std::string_view a, std::string_view b);

/// The name nearest to `typo`, the first of equals; empty if even that needs more than a third of its letters changed
/// (at least 2).
std::string nearest_name(std::string_view typo, const std::vector<std::string>& names);

}  // namespace orthant::config
