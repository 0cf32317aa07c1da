// SPDX-License-Identifier: Apache-2.0
// Faults on purpose, for drills and tests: [fault] says which rank does what, in which phase of which step. Off by
// default; announced in the log, with the seed that chose what the config left open.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <orthant/launch/run_config.hpp>
#include <orthant/launch/watchdog/run_phase.hpp>

namespace orthant::launch {

/// none; throw (an exception); kill, stop, term, usr1 (signals to itself); slow (delay_ms); infinity, nan (in its
/// gradients); diverge (of a weight that ranks hold alike); skip (the next operation of a communicator).
std::vector<std::string> fault_kinds();
/// As name_of(RunPhase).
std::vector<std::string> run_phase_names();

/// Settles what is left to chance, the same on every rank.
void choose_fault(FaultConfig& fault, std::int64_t ranks, std::int64_t steps);
/// For the log; empty without a fault.
std::string describe(const FaultConfig& fault);

/// Whether the fault is this rank's, in this step (counted from 1).
bool strikes(const FaultConfig& fault, int rank, std::int64_t step);
/// Does what throw, kill, stop, slow and the signals say, if this is their phase and step. Throws  InternalError.
void inject(const FaultConfig& fault, RunPhase phase, int rank, std::int64_t step);
/// What some gradients become; 0: nothing.
double poison(const FaultConfig& fault, int rank, std::int64_t step);

}  // namespace orthant::launch
