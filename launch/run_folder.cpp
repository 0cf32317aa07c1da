// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/run_folder.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/stat.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/atomic_file.hpp>
#include <orthant/core/base/error.hpp>

namespace orthant::launch {
namespace {

int last_number(const std::filesystem::path& base) {
  int last = 0;
  for (const auto& entry : std::filesystem::directory_iterator(base)) {
    const auto name = entry.path().filename().string();
    if (name.size() == 4 && std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      last = std::max(last, std::stoi(name));
    }
  }
  return last;
}

std::filesystem::path make_next(const std::filesystem::path& base) {
  std::error_code error;
  std::filesystem::create_directories(base, error);
  if (error) throw ConfigError(fmt::format("run.dir: cannot make '{}': {}", base.string(), error.message()));
  for (int number = last_number(base) + 1; number <= 9999;
       ++number) {  // another run may take a number at the same time
    auto path = base / fmt::format("{:04}", number);
    if (::mkdir(path.c_str(), 0700) == 0) return path;
    if (errno != EEXIST)
      throw ConfigError(fmt::format("run.dir: cannot make '{}': {}", path.string(), std::strerror(errno)));
  }
  throw ConfigError(fmt::format("run.dir: '{}' holds 9999 runs; use another folder", base.string()));
}

}  // namespace

RunFolder::RunFolder(const std::filesystem::path& base) : path_(make_next(base)), metrics_(path_ / "metrics.jsonl") {
  if (!metrics_) throw ConfigError(fmt::format("run.dir: cannot write in '{}'", path_.string()));
}

void RunFolder::metrics(const nlohmann::ordered_json& line) {
  metrics_ << line.dump() << '\n' << std::flush;
  if (!metrics_)
    throw ConfigError(fmt::format("cannot write '{}': {}", (path_ / "metrics.jsonl").string(), std::strerror(errno)));
}

void RunFolder::write(const std::string& name, const std::string& text) const {
  write_text_file(path_ / name, text, raise_as<ConfigError>, 0600);
}

}  // namespace orthant::launch
