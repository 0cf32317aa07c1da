// SPDX-License-Identifier: Apache-2.0
// FlightRecorder: the last operations of one rank, kept in memory of a fixed size and read only when something has gone
// wrong. An operation that is open is never lost: when the ring comes round to it, it moves to a list of its own.
// After NCCL's flight recorder in PyTorch (torch/csrc/distributed/c10d/FlightRecorder.hpp).
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <orthant/core/comm/operation.hpp>

namespace orthant::comm {

/// One communicator or channel that this rank is a member of.
struct FlightGroup {
  int communicator = 0;      ///< how many were made before it: the same on every rank
  std::string name;          ///< "tp"
  std::vector<int> members;  ///< world ranks; of a channel: source, destination
  std::int64_t posted = 0;
  std::int64_t completed = 0;  ///< failed ones too
};

struct FlightRecord {
  std::uint64_t ticket = 0;   ///< counts all operations of the rank
  std::size_t group = 0;      ///< in FlightLog::groups
  std::int64_t sequence = 0;  ///< in its group, from 0: the #n of messages
  Operation operation;        ///< without data
  std::size_t bytes = 0;      ///< of the larger buffer
  stream::Clock::time_point posted{};
  std::optional<stream::Clock::time_point> completed{};  ///< empty: open
  bool has_failed = false;
};

/// A copy, to be read at leisure.
struct FlightLog {
  std::vector<FlightGroup> groups;
  std::vector<FlightRecord> records;  ///< oldest first: all open ones, and what the ring still holds of the others
  stream::Clock::time_point last_progress;
};

/// All members from any thread. Recording allocates nothing, unless more operations are open than the ring holds.
class FlightRecorder {
 public:
  using Ticket = std::uint64_t;

  /// capacity  operations that the ring holds.
  explicit FlightRecorder(std::size_t capacity = 256);

  /// Returns the index by which post() knows the group. Counters of `group` start at 0.
  std::size_t add_group(FlightGroup group);
  /// Notes that the next operation of `group` has been started.
  Ticket post(std::size_t group, const Operation&);
  /// Notes its end; later calls for the same ticket are ignored.
  void complete(Ticket, bool has_failed);

  FlightLog snapshot() const;
  std::optional<FlightRecord> oldest_open() const;
  /// When an operation was last posted or completed; before the first: when the recorder was made.
  stream::Clock::time_point last_progress() const;

 private:
  FlightRecord& slot(Ticket ticket) { return ring_[ticket % ring_.size()]; }

  mutable std::mutex mutex_;
  std::vector<FlightGroup> groups_;
  std::vector<FlightRecord> ring_;
  std::vector<FlightRecord> overtaken_;  ///< open, older than the ring; oldest first
  Ticket next_ = 0;
  stream::Clock::time_point last_progress_;
};

}  // namespace orthant::comm
