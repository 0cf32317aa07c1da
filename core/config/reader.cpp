// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/config/reader.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <orthant/core/base/error.hpp>

namespace orthant::config {
namespace {

/// What is wrong with a value, or nothing.
struct Complaint {
  std::string allowed;
  std::string nearest = {};
};
using Verdict = std::optional<Complaint>;

/// Says the range in words: ">= 1", "<= 8", "in [0, 1]"; empty if every value is allowed.
template <class T>
std::string range_text(T min, T max) {
  const bool has_min = min != std::numeric_limits<T>::lowest();
  const bool has_max = max != std::numeric_limits<T>::max();
  if (has_min && has_max) return fmt::format(" in [{}, {}]", min, max);
  if (has_min) return fmt::format(" >= {}", min);
  return has_max ? fmt::format(" <= {}", max) : std::string();
}

Complaint wrong_type(const Value& value, const std::string& wanted) {
  return {fmt::format("is {}; {} is wanted", kind_of(value), wanted)};
}

std::optional<double> as_number(const Value& value) {
  if (const auto* v = std::get_if<std::int64_t>(&value)) return static_cast<double>(*v);
  if (const auto* v = std::get_if<double>(&value)) return *v;
  return std::nullopt;
}

bool inside(double value, double min, double max) { return std::isfinite(value) && value >= min && value <= max; }

std::string table_of(std::string_view key) {
  const auto dot = key.rfind('.');
  return dot == std::string_view::npos ? std::string() : std::string(key.substr(0, dot));
}

std::string name_of(std::string_view key) { return std::string(key.substr(key.rfind('.') + 1)); }

}  // namespace

ConfigReader::ConfigReader(ConfigDocument document)
    : document_(std::move(document)), diagnostics_(document_.diagnostics) {}

/// The one path of all getters: `check(value, out)` fills `out` or says what is wrong.
template <class T, class Check>
T ConfigReader::get(std::string_view key, T fallback, Check check) {
  const std::string name(key);
  const bool first = !known_.contains(name);
  if (first) order_.push_back(name);
  Known& known = known_[name];
  known.value = Value(fallback);
  known.faulty =
      std::find(document_.unreadable.begin(), document_.unreadable.end(), name) != document_.unreadable.end();
  const auto report = [&](Complaint complaint) {
    known.faulty = true;
    if (first) fault(key, std::move(complaint.allowed), std::move(complaint.nearest));
  };
  const auto entry = document_.entries.find(name);
  if (entry == document_.entries.end()) {
    if (document_.tables.contains(name)) report({"is a table; a value is wanted"});
    return fallback;
  }
  T value = fallback;
  if (Verdict verdict = check(entry->second.value, value)) {
    report(std::move(*verdict));
    return fallback;
  }
  known.value = Value(value);
  return value;
}

std::int64_t ConfigReader::integer(std::string_view key, std::int64_t fallback, IntegerRange range) {
  return get(key, fallback, [&](const Value& value, std::int64_t& out) -> Verdict {
    const std::string wanted = "an integer" + range_text(range.min, range.max);
    const auto* v = std::get_if<std::int64_t>(&value);
    if (v == nullptr) return wrong_type(value, wanted);
    if (*v < range.min || *v > range.max) return Complaint{wanted + " is wanted"};
    out = *v;
    return std::nullopt;
  });
}

double ConfigReader::number(std::string_view key, double fallback, NumberRange range) {
  return get(key, fallback, [&](const Value& value, double& out) -> Verdict {
    const std::string wanted = "a finite number" + range_text(range.min, range.max);
    const auto v = as_number(value);
    if (!v) return wrong_type(value, wanted);
    if (!inside(*v, range.min, range.max)) return Complaint{wanted + " is wanted"};
    out = *v;
    return std::nullopt;
  });
}

bool ConfigReader::boolean(std::string_view key, bool fallback) {
  return get(key, fallback, [](const Value& value, bool& out) -> Verdict {
    const auto* v = std::get_if<bool>(&value);
    if (v == nullptr) return wrong_type(value, "true or false");
    out = *v;
    return std::nullopt;
  });
}

std::string ConfigReader::text(std::string_view key, std::string fallback) {
  return get(key, std::move(fallback), [](const Value& value, std::string& out) -> Verdict {
    const auto* v = std::get_if<std::string>(&value);
    if (v == nullptr) return wrong_type(value, "a text in quotes");
    out = *v;
    return std::nullopt;
  });
}

std::string ConfigReader::choice(std::string_view key, std::string fallback, const std::vector<std::string>& names) {
  return get(key, std::move(fallback), [&](const Value& value, std::string& out) -> Verdict {
    const std::string wanted = fmt::format("one of \"{}\"", fmt::join(names, "\", \""));
    const auto* v = std::get_if<std::string>(&value);
    if (v == nullptr) return wrong_type(value, wanted);
    if (std::find(names.begin(), names.end(), *v) == names.end()) {
      const std::string nearest = nearest_name(*v, names);
      return Complaint{wanted + " is wanted", nearest.empty() ? nearest : "\"" + nearest + "\""};
    }
    out = *v;
    return std::nullopt;
  });
}

Value ConfigReader::integer_or_choice(std::string_view key, Value fallback, IntegerRange range,
                                      const std::vector<std::string>& names) {
  return get(key, std::move(fallback), [&](const Value& value, Value& out) -> Verdict {
    const std::string wanted =
        fmt::format("an integer{}, or one of \"{}\"", range_text(range.min, range.max), fmt::join(names, "\", \""));
    const auto* number = std::get_if<std::int64_t>(&value);
    const auto* name = std::get_if<std::string>(&value);
    if (number == nullptr && name == nullptr) return wrong_type(value, wanted);
    if (number != nullptr && (*number < range.min || *number > range.max)) return Complaint{wanted + " is wanted"};
    if (name != nullptr && std::ranges::find(names, *name) == names.end()) {
      const std::string nearest = nearest_name(*name, names);
      return Complaint{wanted + " is wanted", nearest.empty() ? nearest : "\"" + nearest + "\""};
    }
    out = value;
    return std::nullopt;
  });
}

std::vector<double> ConfigReader::numbers(std::string_view key, std::vector<double> fallback, NumbersShape shape) {
  return get(key, std::move(fallback), [&](const Value& value, std::vector<double>& out) -> Verdict {
    const std::string count = shape.size < 0 ? "" : fmt::format("{} ", shape.size);
    const std::string range = range_text(shape.min, shape.max);
    const std::string wanted =
        fmt::format("an array of {}finite numbers{}{}", count, range.empty() ? "" : ", each", range);
    const auto* v = std::get_if<std::vector<double>>(&value);
    if (v == nullptr) return wrong_type(value, wanted);
    const bool right_size = shape.size < 0 || std::ssize(*v) == shape.size;
    const auto good = [&](double x) { return inside(x, shape.min, shape.max); };
    if (!right_size || !std::all_of(v->begin(), v->end(), good)) return Complaint{wanted + " is wanted"};
    out = *v;
    return std::nullopt;
  });
}

std::vector<std::string> ConfigReader::texts(std::string_view key) {
  return get(key, std::vector<std::string>{}, [&](const Value& value, std::vector<std::string>& out) -> Verdict {
    const auto* numbers = std::get_if<std::vector<double>>(&value);  // [] may be of either kind
    if (numbers != nullptr && numbers->empty()) return std::nullopt;
    const auto* v = std::get_if<std::vector<std::string>>(&value);
    if (v == nullptr) return wrong_type(value, "an array of strings");
    out = *v;
    return std::nullopt;
  });
}

bool ConfigReader::is_set(std::string_view key) const {
  const std::string name(key);
  const auto& bad = document_.unreadable;
  return document_.entries.contains(name) || std::find(bad.begin(), bad.end(), name) != bad.end();
}

void ConfigReader::reject(std::string_view key, std::string why, std::initializer_list<std::string_view> involved) {
  const auto trusted = [&](std::string_view name) {
    const auto known = known_.find(name);
    return known == known_.end() || !known->second.faulty;
  };
  // Where reading stopped, a key that is absent may stand below with a value that the rule did not see.
  if (!document_.complete || !trusted(key) || !std::all_of(involved.begin(), involved.end(), trusted)) return;
  fault(key, std::move(why));
}

void ConfigReader::settle(std::string_view key, Value value) {
  const auto known = known_.find(key);
  invariant(known != known_.end(), "config: settle() of a key that no getter asked for");
  known->second.value = std::move(value);
}

void ConfigReader::fault(std::string_view key, std::string allowed, std::string nearest) {
  const std::string name(key);
  Diagnostic diagnostic;
  diagnostic.source.file = document_.file;
  diagnostic.source.is_default = true;
  diagnostic.key = name;
  diagnostic.allowed = std::move(allowed);
  diagnostic.nearest = std::move(nearest);
  if (const auto entry = document_.entries.find(name); entry != document_.entries.end()) {
    diagnostic.source = entry->second.source;
    diagnostic.found = entry->second.shown;
  } else if (const auto table = document_.tables.find(name); table != document_.tables.end()) {
    diagnostic.source = table->second;
  } else if (const auto known = known_.find(name); known != known_.end()) {
    diagnostic.found = to_toml(known->second.value);
  }
  diagnostics_.push_back(std::move(diagnostic));
}

std::vector<std::string> ConfigReader::known_tables() const {
  std::set<std::string> tables;
  for (std::string table : order_) {
    while (!(table = table_of(table)).empty()) tables.insert(table);
  }
  return {tables.begin(), tables.end()};
}

void ConfigReader::finish() {
  const std::vector<std::string> tables = known_tables();
  const auto is_table = [&](const std::string& name) {
    return std::find(tables.begin(), tables.end(), name) != tables.end();
  };
  // A key below an unknown table is not reported again, nor one below a known key (which its getter has reported).
  const auto parent_is_fine = [&](const std::string& key) { return table_of(key).empty() || is_table(table_of(key)); };
  for (const auto& [table, source] : document_.tables) {
    if (is_table(table) || known_.contains(table) || !parent_is_fine(table)) continue;
    diagnostics_.push_back({source, table, "", "unknown table", nearest_name(table, tables)});
  }
  for (const auto& [key, entry] : document_.entries) {
    if (known_.contains(key)) continue;
    if (is_table(key)) {
      fault(key, fmt::format("is {}; a table [{}] is wanted", kind_of(entry.value), key));
    } else if (parent_is_fine(key) || !document_.tables.contains(table_of(key))) {
      report_unknown_key(key);
    }
  }
}

void ConfigReader::report_unknown_key(const std::string& key) {
  const std::string table = table_of(key), name = name_of(key);
  std::vector<std::string> siblings;
  for (const std::string& known : order_) {
    if (table_of(known) == table) siblings.push_back(name_of(known));
  }
  // A typo in this table; or the right name in the wrong table; or, if the table is strange too, a typo in the whole
  // path.
  std::string nearest = nearest_name(name, siblings);
  if (!nearest.empty() && !table.empty()) nearest = table + "." + nearest;
  if (nearest.empty()) {
    const auto same =
        std::find_if(order_.begin(), order_.end(), [&](const auto& known) { return name_of(known) == name; });
    if (same != order_.end()) nearest = *same;
  }
  if (nearest.empty() && siblings.empty()) nearest = nearest_name(key, order_);
  std::string why = "unknown key";
  if (nearest.empty() && !siblings.empty()) why += fmt::format("; [{}] has {}", table, fmt::join(siblings, ", "));
  fault(key, std::move(why), std::move(nearest));
}

void ConfigReader::throw_if_errors() const {
  if (!diagnostics_.empty()) throw ConfigError(format_diagnostics());
}

std::string ConfigReader::resolved_toml() const {
  std::vector<std::string> tables{""};  // keys outside tables must come first in TOML
  for (const std::string& key : order_) {
    if (std::find(tables.begin(), tables.end(), table_of(key)) == tables.end()) tables.push_back(table_of(key));
  }
  std::string text;
  for (const std::string& table : tables) {
    if (!table.empty()) text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", table);
    for (const std::string& key : order_) {
      if (table_of(key) == table) text += fmt::format("{} = {}\n", name_of(key), to_toml(known_.at(key).value));
    }
  }
  return text;
}

}  // namespace orthant::config
