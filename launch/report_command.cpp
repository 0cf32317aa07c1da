// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/report_command.hpp>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/error.hpp>
#include <orthant/launch/watchdog/hang_report.hpp>

namespace orthant::launch {
namespace {

namespace fs = std::filesystem;

bool is_empty(const HangDumps& dumps) { return dumps.dumps.empty() && dumps.damaged.empty(); }

/// Those in the folder itself, or in the youngest of its hang, hang-….
HangDumps find_dumps(const fs::path& folder) {
  auto dumps = read_dumps(folder);
  if (!is_empty(dumps)) return dumps;
  std::map<fs::file_time_type, fs::path, std::greater<>> by_age;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const auto name = entry->path().filename().string();
    std::error_code gone;
    if (name == "hang" || name.starts_with("hang-")) by_age.emplace(entry->last_write_time(gone), entry->path());
  }
  for (const auto& [time, path] : by_age) {
    dumps = read_dumps(path);
    if (!is_empty(dumps)) return dumps;
  }
  throw ConfigError(fmt::format(
      "'{}' has no dumps of ranks: wanted rank0.json and so on, there or in its hang folder; they are written when a "
      "run hangs",
      folder.string()));
}

int report_hang(const std::string& folder, bool json) {
  const auto dumps = find_dumps(folder);
  const auto verdict = judge(dumps);
  if (json) {
    auto object = to_json(verdict);
    object["ranks"] = dumps.size;
    object["dumps"] = dumps.dumps.size();
    fmt::print("{}\n", object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    fmt::print("{}", to_text(verdict));
  }
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void add_report_command(CLI::App& app, int& code) {
  struct Arguments {
    std::string hang;
    bool json = false;
  };
  const auto arguments = std::make_shared<Arguments>();
  auto* command = app.add_subcommand("report", "explain how a run ended");
  command
      ->add_option("--hang", arguments->hang,
                   "folder with the dumps of a run that hung, or one that holds it: who is to blame")
      ->required();
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->callback([arguments, &code] { code = report_hang(arguments->hang, arguments->json); });
}

}  // namespace orthant::launch
