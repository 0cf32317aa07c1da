// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/config/document.hpp>

#include <algorithm>
#include <cctype>
#include <optional>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/base/mapped_file.hpp>

namespace orthant::config {
namespace {

constexpr int kMostRepairs = 20;

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

std::string number_text(double value) {
  std::string text = fmt::format("{}", value);  // shortest text that reads back as the same double
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

std::string quoted(const std::string& text) {
  std::ostringstream out;
  out << toml::value<std::string>(text);
  return out.str();
}

std::string shorten(std::string text) {
  constexpr std::size_t kLongest = 60;
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (text.size() > kLongest) text = text.substr(0, kLongest - 3) + "...";
  return text;
}

Value to_value(const toml::node& node) {
  if (const auto* v = node.as_boolean()) return v->get();
  if (const auto* v = node.as_integer()) return v->get();
  if (const auto* v = node.as_floating_point()) return v->get();
  if (const auto* v = node.as_string()) return v->get();
  if (const auto* array = node.as_array()) {
    if (!array->empty() && array->is_homogeneous<std::string>()) {
      std::vector<std::string> texts;
      for (const toml::node& element : *array) texts.push_back(*element.value<std::string>());
      return texts;
    }
    std::vector<double> numbers;
    for (const toml::node& element : *array) {
      if (!element.is_number()) return OtherValue{"an array neither of numbers nor of strings"};
      numbers.push_back(*element.value<double>());
    }
    return numbers;
  }
  return OtherValue{"a date or time"};
}

Entry to_entry(const toml::node& node, Source source) {
  Value value = to_value(node);
  std::string shown = to_toml(value);
  if (shown.empty()) {
    std::ostringstream out;
    node.visit([&out](const auto& n) { out << n; });
    shown = out.str();
  }
  return {std::move(value), shorten(shown), std::move(source)};
}

Source source_of(const toml::source_position& at, const std::string& file) {
  return {file, static_cast<int>(at.line), 0, false};
}

/// A name with other letters than a bare key's keeps its quotes, so that "mesh.tp" in quotes is not the key tp of table
/// mesh.
std::string path_part(std::string_view name) {
  const bool bare = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
  return bare ? std::string(name) : quoted(std::string(name));
}

void flatten(const toml::table& table, const std::string& prefix, ConfigDocument& document) {
  for (const auto& [name, node] : table) {
    const std::string part = path_part(name.str());
    const std::string key = prefix.empty() ? part : prefix + "." + part;
    const Source source = source_of(name.source().begin, document.file);
    if (const toml::table* child = node.as_table()) {
      document.tables[key] = source;
      flatten(*child, key, document);
    } else {
      document.entries[key] = to_entry(node, source);
    }
  }
}

std::optional<toml::table> try_parse(std::string_view text) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  std::istringstream in{std::string(text)};
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\r") - first + 1));
}

/// The header of the table that `lines[line]` is in: "mesh" under "[mesh]".
std::string table_above(const std::vector<std::string>& lines, std::size_t line) {
  while (line-- > 0) {
    const std::string text = trimmed(lines[line]);
    if (text.size() > 2 && text.front() == '[') return trimmed(std::string_view(text).substr(1, text.find(']') - 1));
  }
  return {};
}

/// Takes the broken line out if the fault lies in it alone, so that reading can go on behind it.
/// returns false if the line cannot be blamed alone: what it would hide is unknown.
bool repair(std::vector<std::string>& lines, const toml::parse_error& error, ConfigDocument& document) {
  const std::size_t line = error.source().begin.line - 1;
  if (line >= lines.size()) return false;
  const std::string text = trimmed(lines[line]);
  const auto equals = text.find('=');
  if (text.empty() || text.front() == '[' || text.front() == '#' || equals == std::string::npos) return false;
  const bool redefined = std::string_view(error.description()).find("redefine") != std::string_view::npos;
  if (!redefined && try_parse(text)) return false;
  if (!redefined) {
    const std::string table = table_above(lines, line);
    const std::string name = trimmed(std::string_view(text).substr(0, equals));
    document.unreadable.push_back(table.empty() ? name : table + "." + name);
  }
  lines[line].clear();
  return true;
}

void parse_file_text(std::string_view text, ConfigDocument& document) {
  std::vector<std::string> lines = split_lines(text);
  std::string current(text);
  for (int repairs = 0;; ++repairs) {
    try {
      flatten(toml::parse(current), "", document);
      return;
    } catch (const toml::parse_error& error) {
      const auto at = error.source().begin;
      const Source source{document.file, static_cast<int>(at.line), static_cast<int>(at.column), false};
      Diagnostic diagnostic;
      diagnostic.source = source;
      diagnostic.allowed = fmt::format("not TOML: {}", error.description());
      document.diagnostics.push_back(std::move(diagnostic));
      if (repairs == kMostRepairs || !repair(lines, error, document)) break;
      current = fmt::format("{}", fmt::join(lines, "\n"));
    }
  }
  document.complete = false;
}

bool is_bare_word(const std::string& text) {
  return text.empty() || (std::string_view("\"'[{").find(text.front()) == std::string_view::npos &&
                          text.find_first_of("\n\r") == std::string::npos);
}

/// An override's value: TOML, or else one bare word.
std::optional<Entry> override_value(const std::string& text) {
  const Source source = from_override();
  if (const auto parsed = try_parse("v = " + text); parsed && parsed->size() == 1) {
    const toml::node& node = *parsed->get("v");
    if (node.is_table()) return std::nullopt;
    return to_entry(node, source);
  }
  if (!is_bare_word(text)) return std::nullopt;
  return Entry{text, shorten(quoted(text)), source};
}

void apply_override(const std::string& text, ConfigDocument& document) {
  const auto equals = text.find('=');
  const std::string key = trimmed(std::string_view(text).substr(0, std::min(equals, text.size())));
  const auto reject = [&](std::string why) {
    Diagnostic diagnostic;
    diagnostic.source = from_override();
    diagnostic.key = shorten(text);
    diagnostic.allowed = std::move(why);
    document.diagnostics.push_back(std::move(diagnostic));
  };
  if (equals == std::string::npos || key.empty()) return reject("is not key.path=value, e.g. --set mesh.tp=2");
  std::optional<Entry> entry = override_value(trimmed(std::string_view(text).substr(equals + 1)));
  if (!entry) return reject("the value is neither a TOML value nor one bare word; tables are set key by key");
  document.entries[key] = std::move(*entry);
  std::erase(document.unreadable, key);
}

}  // namespace

std::string kind_of(const Value& value) {
  return std::visit(Overloaded{[](bool) -> std::string { return "a boolean"; },
                               [](std::int64_t) -> std::string { return "an integer"; },
                               [](double) -> std::string { return "a float"; },
                               [](const std::string&) -> std::string { return "a text"; },
                               [](const std::vector<double>&) -> std::string { return "an array of numbers"; },
                               [](const std::vector<std::string>&) -> std::string { return "an array of texts"; },
                               [](const OtherValue& other) { return other.kind; }},
                    value);
}

std::string to_toml(const Value& value) {
  return std::visit(Overloaded{[](bool v) -> std::string { return v ? "true" : "false"; },
                               [](std::int64_t v) { return fmt::format("{}", v); },
                               [](double v) { return number_text(v); }, [](const std::string& v) { return quoted(v); },
                               [](const std::vector<double>& v) {
                                 std::vector<std::string> parts;
                                 for (const double x : v) parts.push_back(number_text(x));
                                 return fmt::format("[{}]", fmt::join(parts, ", "));
                               },
                               [](const std::vector<std::string>& v) {
                                 std::vector<std::string> parts;
                                 for (const std::string& text : v) parts.push_back(quoted(text));
                                 return fmt::format("[{}]", fmt::join(parts, ", "));
                               },
                               [](const OtherValue&) { return std::string(); }},
                    value);
}

ConfigDocument ConfigDocument::parse(std::string_view text, std::string file,
                                     const std::vector<std::string>& overrides) {
  ConfigDocument document;
  document.file = std::move(file);
  parse_file_text(text, document);
  for (const std::string& text_override : overrides) apply_override(text_override, document);
  return document;
}

ConfigDocument ConfigDocument::read(const std::filesystem::path& path, const std::vector<std::string>& overrides) {
  try {
    const MappedFile file(path, raise_as<ConfigError>);
    return parse(file.text(), path.string(), overrides);
  } catch (const ConfigError& error) {
    ConfigDocument document;
    document.file = path.string();
    document.complete = false;
    Diagnostic diagnostic;
    diagnostic.source.file = path.string();
    diagnostic.allowed = error.what();
    document.diagnostics.push_back(std::move(diagnostic));
    return document;
  }
}

}  // namespace orthant::config
