// SPDX-License-Identifier: Apache-2.0
// The hang watchdog of one rank: when nothing has progressed for the time-out of the phase, it writes what this rank
// was doing, finds the culprit together with the other ranks' watchdogs (through files, never through MPI), tells it
// once, and ends the process. MPI alone notices neither a stopped process nor a collective that a rank left out.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include <orthant/core/comm/flight_recorder.hpp>
#include <orthant/launch/watchdog/run_phase.hpp>

namespace orthant::launch {

struct WatchdogOptions {
  const comm::FlightRecorder& recorder;  ///< outlives the watchdog
  int rank = 0;
  int size = 1;
  std::array<std::chrono::milliseconds, kRunPhases> timeouts{};  ///< by RunPhase; 0: never
  /// Ends the run with this code, e.g. by MPI_Abort. Does not return, and may block: 5 s later the watchdog ends the
  /// process itself. Called on a thread of the watchdog.
  std::function<void(int exit_code)> kill;
};

/// Time is the monotonic clock's, and time for which this process itself was stopped (SIGSTOP) does not count.
class Watchdog {
 public:
  explicit Watchdog(WatchdogOptions options);
  /// Never expires afterwards.
  ~Watchdog();

  /// A phase begins, or the next step of one. Counts as progress. Any thread.
  void enter(RunPhase phase, std::int64_t step);
  /// Something that no communicator sees has finished: a step, a piece of a file. Any thread.
  void progress();
  /// Where dumps go from now on; before this is called, a rank only says on stderr what it sees itself.
  /// folder  seen by all ranks, of this run alone; made when there is something to say.
  void dump_into(std::filesystem::path folder);

 private:
  class Core;
  std::unique_ptr<Core> core_;
};

}  // namespace orthant::launch
