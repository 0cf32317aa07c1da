// SPDX-License-Identifier: Apache-2.0
// What measurements on emulated devices share: ranks as threads or as processes, and a machine that is quiet before,
// meanwhile and after, or says that it was not.
#pragma once

#include <functional>

#include <nlohmann/json_fwd.hpp>

#include <orthant/core/comm/fabric.hpp>

namespace CLI {
class App;
}

namespace orthant::launch {

struct Quietness {
  static constexpr double kNoiseLimitMs = 1;
  static constexpr double kForeignLimit = 0.05;

  double noise_ms = 0;       ///< how late sleepers wake up (wake_up_noise_ms): the larger of before and after
  double foreign_share = 0;  ///< of the host's processor time meanwhile: what others used, or another host took
  int attempts = 0;
  bool busy() const { return noise_ms > kNoiseLimitMs || foreign_share > kForeignLimit; }
};

/// --attempts, for measure_quietly().
void add_attempts_option(CLI::App& command, int& attempts);

/// Calls `measure` until the machine was quiet, `attempts` times at most. Collective over `fabric`, whose ranks are on
/// one host; all call `measure` equally often.
Quietness measure_quietly(comm::Fabric& fabric, int attempts, const std::function<void()>& measure);

/// Adds how quiet it was to a measurement's JSON.
void add_quietness(nlohmann::ordered_json& json, const Quietness& quietness);

/// Prints that the figures are not to be trusted, if so. Returns the command's exit code.
int report_quietness(const Quietness& quietness);

/// Whether mpirun started this process.
bool under_mpirun();
/// Under mpirun runs `rank` here, as one of its ranks; an Error is printed and ends all of them with its exit code.
/// Otherwise runs it once on each of `threads` threads, and rethrows the first failure.
void run_on_ranks(int threads, const std::function<void(comm::Fabric&)>& rank);

}  // namespace orthant::launch
