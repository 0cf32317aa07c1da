// SPDX-License-Identifier: Apache-2.0
// Who is to blame for a hang: a pure function of what the ranks dumped. A rank waits for the members that have not
// posted the operation in which it is stuck; to blame are those that are waited for and wait for nobody themselves.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <orthant/launch/watchdog/hang_folder.hpp>

namespace orthant::launch {

/// Ranks that are stuck in one operation, and the members that keep them waiting.
struct HangWait {
  int communicator = 0;
  std::string group{};  ///< "stage [0 2 3]"
  std::int64_t sequence = 0;
  std::string what{};  ///< "all_reduce sum of 4 fp64"; on a channel "send of …" or "receive of …"
  std::vector<int> waiters{};
  std::vector<int> missing{};  ///< not there yet, or without a dump; empty: all are there and yet it does not end
  double seconds = 0;          ///< the longest wait
};

/// Members that called different operations at the same place of their group's order.
struct HangMismatch {
  std::string group{};
  std::int64_t sequence = 0;
  std::map<std::string, std::vector<int>> calls{};  ///< who called what
};

struct HangVerdict {
  std::vector<int> culprits;
  std::vector<int> without_dump;
  std::vector<HangWait> waits;  ///< by the number of waiters
  std::vector<HangMismatch> mismatches;
  std::vector<std::string> lines;  ///< for people: the verdict, then what it rests on
};

/// dumps  of at least one rank, whole or damaged.
HangVerdict judge(const HangDumps& dumps);
/// What one rank can say when it cannot look at the others' dumps.
HangVerdict judge_alone(const RankDump& dump);

/// The lines, those after the first indented; ends with a newline.
std::string to_text(const HangVerdict& verdict);
nlohmann::ordered_json to_json(const HangVerdict& verdict);

}  // namespace orthant::launch
