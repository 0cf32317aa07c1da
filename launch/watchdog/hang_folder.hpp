// SPDX-License-Identifier: Apache-2.0
// The folder in which the ranks of a run that hangs find each other without MPI: each leaves its dump, the first dump
// is the alarm for the others, and whoever makes verdict.txt speaks for all.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <orthant/launch/watchdog/rank_dump.hpp>

namespace orthant::launch {

/// All that was found in a folder.
struct HangDumps {
  struct Damaged {
    int rank = 0;
    std::string why;
  };
  int size = 0;                 ///< ranks of the run, as the dumps say; 0: there are none
  std::vector<RankDump> dumps;  ///< by rank
  std::vector<Damaged> damaged;

  const RankDump* find(int rank) const;
};

class HangFolder {
 public:
  /// path  made, with the rights 0700, by the first who has something to say; belongs to one run alone: dumps that an
  ///       earlier run left in it would be taken for this run's.
  explicit HangFolder(std::filesystem::path path) : path_(std::move(path)) {}

  const std::filesystem::path& path() const { return path_; }
  /// Puts a rank's dump in its place, with the rights 0600.
  /// Throws  CommError.
  void write(const RankDump& dump) const;
  /// Ranks that have left a dump, whole or damaged, in ascending order.
  std::vector<int> ranks_with_dumps() const;
  HangDumps read() const;

  /// Writes verdict.txt and returns true, unless a rank has been here before.
  bool claim_verdict(const std::string& text) const;
  bool has_verdict() const;

 private:
  std::filesystem::path path_;
};

/// Reads the dumps in `folder`, which may be missing. Files are not trusted: what is no dump is listed as damaged.
HangDumps read_dumps(const std::filesystem::path& folder);

}  // namespace orthant::launch
