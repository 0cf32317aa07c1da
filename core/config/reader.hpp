// SPDX-License-Identifier: Apache-2.0
// Typed, strict reading of a config. Getters never throw for the user's faults: they collect a diagnostic and return
// the default, so that one run shows every fault. A key becomes known by being asked for; finish() reports the keys
// nobody asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <orthant/core/config/diagnostic.hpp>
#include <orthant/core/config/document.hpp>

namespace orthant::config {

struct IntegerRange {
  std::int64_t min = std::numeric_limits<std::int64_t>::min();
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
};
struct NumberRange {
  double min = std::numeric_limits<double>::lowest();
  double max = std::numeric_limits<double>::max();
};
struct NumbersShape {
  std::int64_t size = -1;  ///< wanted number of elements; -1: any
  double min = std::numeric_limits<double>::lowest();
  double max = std::numeric_limits<double>::max();
};

class ConfigReader {
 public:
  explicit ConfigReader(ConfigDocument document);

  // Getters. `key` is a full dotted path; bounds are inclusive. NaN and infinities are always refused.
  std::int64_t integer(std::string_view key, std::int64_t fallback, IntegerRange range = {});
  double number(std::string_view key, double fallback, NumberRange range = {});  ///< an integer is a number too
  bool boolean(std::string_view key, bool fallback);
  std::string text(std::string_view key, std::string fallback);
  std::string choice(std::string_view key, std::string fallback, const std::vector<std::string>& names);
  /// An integer, or one of `names`.
  Value integer_or_choice(std::string_view key, Value fallback, IntegerRange range,
                          const std::vector<std::string>& names);
  std::vector<double> numbers(std::string_view key, std::vector<double> fallback, NumbersShape shape = {});

  std::vector<std::string> texts(std::string_view key);  ///< an array of strings; without the key empty

  /// True if the file or an override gives the key (be it well or badly).
  bool is_set(std::string_view key) const;

  /// Adds a fault of a rule over fields, at the place of `key`. Not added when `key` or one of `involved` was itself
  /// unreadable: the rule then looked at a default that the user did not choose.
  void reject(std::string_view key, std::string why, std::initializer_list<std::string_view> involved = {});

  /// Replaces the value of a known key in the resolved config: what was inferred (e.g. mesh.dp = 0) becomes explicit.
  void settle(std::string_view key, Value value);

  /// Adds one diagnostic per key or table that no getter asked for. Call once, after all getters.
  void finish();

  const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }
  /// All faults, one a line.
  std::string format_diagnostics() const { return config::format_diagnostics(diagnostics_); }
  /// Throws  ConfigError with all faults if there are any.
  void throw_if_errors() const;

  /// Every known key with its final value, by table, as TOML that reads back to the same values.
  std::string resolved_toml() const;

 private:
  struct Known {
    Value value;
    bool faulty = false;  ///< what the user wrote could not be used: `value` is the default
  };

  template <class T, class Check>
  T get(std::string_view key, T fallback, Check check);
  void fault(std::string_view key, std::string allowed, std::string nearest = {});
  void report_unknown_key(const std::string& key);
  std::vector<std::string> known_tables() const;

  ConfigDocument document_;
  std::map<std::string, Known, std::less<>> known_;
  std::vector<std::string> order_;  ///< known keys as first asked for
  std::vector<Diagnostic> diagnostics_;
};

}  // namespace orthant::config
