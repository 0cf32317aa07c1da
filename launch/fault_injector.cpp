// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/fault_injector.hpp>

#include <chrono>
#include <csignal>
#include <limits>
#include <random>
#include <thread>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>

namespace orthant::launch {

std::vector<std::string> fault_kinds() {
  return {"none", "throw", "kill", "stop", "term", "usr1", "slow", "infinity", "nan", "diverge", "skip"};
}

std::vector<std::string> run_phase_names() {
  std::vector<std::string> names;
  for (int phase = 0; phase <= static_cast<int>(RunPhase::exit); ++phase)
    names.emplace_back(name_of(static_cast<RunPhase>(phase)));
  return names;
}

void choose_fault(FaultConfig& fault, std::int64_t ranks, std::int64_t steps) {
  std::mt19937_64 chance(static_cast<std::uint64_t>(fault.seed));
  const auto rank = static_cast<int>(chance() % static_cast<std::uint64_t>(ranks));
  const auto step =
      1 + static_cast<std::int64_t>(chance() % static_cast<std::uint64_t>(std::max<std::int64_t>(steps, 1)));
  if (fault.rank < 0) fault.rank = rank;
  if (fault.step == 0) fault.step = step;
}

std::string describe(const FaultConfig& fault) {
  if (fault.kind == "none") return {};
  const auto often = fault.times == 1   ? ""
                     : fault.times == 0 ? " and all later ones"
                                        : fmt::format(" and {} later ones", fault.times - 1);
  return fmt::format("fault injection is on: {} on rank {} in phase {}, step {}{} (seed {})", fault.kind, fault.rank,
                     fault.phase, fault.step, often, fault.seed);
}

bool strikes(const FaultConfig& fault, int rank, std::int64_t step) {
  return fault.rank == rank && step >= fault.step && (fault.times == 0 || step < fault.step + fault.times);
}

void inject(const FaultConfig& fault, RunPhase phase, int rank, std::int64_t step) {
  const auto& kind = fault.kind;
  if (kind == "none" || fault.phase != name_of(phase) || !strikes(fault, rank, step)) return;
  if (kind == "kill") std::raise(SIGKILL);
  if (kind == "stop") std::raise(SIGSTOP);
  if (kind == "term") std::raise(SIGTERM);
  if (kind == "usr1") std::raise(SIGUSR1);
  if (kind == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(fault.delay_ms));
  if (kind == "throw")
    throw InternalError(fmt::format(
        "fault injected by the config ([fault] kind = \"throw\", phase = \"{}\", step = {})", fault.phase, step));
}

double poison(const FaultConfig& fault, int rank, std::int64_t step) {
  if (!strikes(fault, rank, step)) return 0;
  if (fault.kind == "infinity") return std::numeric_limits<double>::infinity();
  return fault.kind == "nan" ? std::numeric_limits<double>::quiet_NaN() : 0;
}

}  // namespace orthant::launch
