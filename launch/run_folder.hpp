// SPDX-License-Identifier: Apache-2.0
// The folder of one run, made by rank 0: runs/quickstart/0003 with the resolved config, metrics.jsonl, trace.json,
// summary.json. Runs never write into each other's folder.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace orthant::launch {

class RunFolder {
 public:
  /// Makes the next numbered folder in `base` (0700).
  /// Throws  ConfigError when it cannot be made.
  explicit RunFolder(const std::filesystem::path& base);

  const std::filesystem::path& path() const { return path_; }
  /// Appends one line to metrics.jsonl and flushes it.
  void metrics(const nlohmann::ordered_json& line);
  /// Writes a whole file, through a temporary and a rename.
  void write(const std::string& name, const std::string& text) const;

 private:
  std::filesystem::path path_;
  std::ofstream metrics_;
};

}  // namespace orthant::launch
