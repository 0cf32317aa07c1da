// SPDX-License-Identifier: Apache-2.0
// What one rank knew when a run hung, as data: written as rank<r>.json, read back by whoever looks for the culprit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <orthant/core/base/result.hpp>
#include <orthant/core/comm/flight_recorder.hpp>

namespace orthant::launch {

struct DumpedGroup {
  int communicator = 0;  ///< the same on every rank; names need not be unique
  std::string name;
  std::vector<int> members;
  std::int64_t posted = 0;
  std::int64_t completed = 0;
};

struct DumpedOperation {
  int communicator = 0;
  std::int64_t sequence = 0;
  std::string what{};  ///< to_string(comm::Operation)
  std::int64_t bytes = 0;
  double posted_s = 0;                  ///< before the dump
  std::optional<double> completed_s{};  ///< likewise; empty: open
  bool has_failed = false;
};

struct RankDump {
  int rank = 0;
  int size = 0;
  bool has_expired = false;  ///< false: written because another rank's time-out had expired
  std::string phase{};
  std::int64_t step = 0;
  double silent_s = 0;      ///< without progress
  double timeout_s = 0;     ///< of the phase
  double silent_since = 0;  ///< wall clock, seconds since 1970: only to tell who fell silent first
  std::string host{};
  std::int64_t pid = 0;
  std::vector<DumpedGroup> groups{};
  std::vector<DumpedOperation> operations{};  ///< oldest first: all open ones and the last finished ones

  const DumpedGroup* find_group(int communicator) const;
  const DumpedOperation* find_operation(int communicator, std::int64_t sequence) const;
};

/// Fills in groups and operations.
void add_flight(const comm::FlightLog& log, stream::Clock::time_point now, RankDump& dump);

/// {"format", "rank", …, "open": [...], "ring": [...]}: open and finished operations apart, for people.
std::string to_json_text(const RankDump& dump);
/// Says what is wrong with a damaged one.
Result<RankDump> parse_dump(std::string_view text);

}  // namespace orthant::launch
