// SPDX-License-Identifier: Apache-2.0
// A TOML file and its `--set` overrides, flattened to dotted keys with their places. Never throws for a fault in the
// text: faults become diagnostics. After a fault inside one `key = value` line reading goes on, so that later faults
// are found too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <orthant/core/config/diagnostic.hpp>

namespace orthant::config {

/// A value of some TOML type that no getter asks for (a date, an array that is not of numbers, a table in an array).
struct OtherValue {
  std::string kind;  ///< with its article: "a date"
};
using Value =
    std::variant<bool, std::int64_t, double, std::string, std::vector<double>, std::vector<std::string>, OtherValue>;

/// "an integer", "a text", … for messages.
std::string kind_of(const Value& value);
/// The value as TOML; floats round-trip. Empty for OtherValue.
std::string to_toml(const Value& value);

struct Entry {
  Value value;
  std::string shown;  ///< as TOML, shortened for messages
  Source source;
};

struct ConfigDocument {
  std::string file;                      ///< as given
  std::map<std::string, Entry> entries;  ///< by dotted key, e.g. "mesh.tp"
  std::map<std::string, Source> tables;  ///< by dotted key, e.g. "mesh"
  std::vector<Diagnostic> diagnostics;   ///< faults of TOML itself, of the file and of the overrides
  std::vector<std::string> unreadable;   ///< keys whose line is broken: their value is not known
  bool complete = true;                  ///< false if reading stopped: a key that is absent may well be in the file

  /// Reads `path` and applies `overrides`, each "key.path=value", the last one of a key winning. A value that is not
  /// TOML but one bare word is a text. All faults are in `diagnostics`.
  static ConfigDocument read(const std::filesystem::path& path, const std::vector<std::string>& overrides = {});
  /// The same for text already in memory; `file` is its name in messages.
  static ConfigDocument parse(std::string_view text, std::string file, const std::vector<std::string>& overrides = {});
};

}  // namespace orthant::config
