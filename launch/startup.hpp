// SPDX-License-Identifier: Apache-2.0
// What all ranks must have alike before anything is made: the config, the program, the data, the launcher's idea of who
// they are. A difference is an error that names key and ranks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <orthant/core/comm/fabric.hpp>
#include <orthant/launch/run_config.hpp>

namespace orthant::launch {

using Facts = std::map<std::string, std::string>;

/// Every key of the resolved config, the program file's hash, and the fingerprints of the data.
Facts facts_of(const RunConfig& run);

/// Collective over `everyone`. Throws  ConfigError, on all ranks alike, naming each key that differs, its values and
/// the ranks that have them.
void require_alike(comm::Collectives& everyone, const Facts& mine, std::chrono::milliseconds timeout);

/// Throws  ConfigError if the launcher has started more processes than MPI knows: then each believes to be alone.
void require_launched_by_mpi(int world);

/// Reads the config on every rank, and has all ranks agree: on a fault that any of them finds, and on what they read.
/// Collective over all ranks. Throws  ConfigError or DataError, the same on all ranks.
RunConfig read_run_config_together(comm::Fabric& fabric, const std::string& path,
                                   const std::vector<std::string>& overrides);

/// 16 hexadecimal digits from the system's randomness, the same on all ranks. Collective.
std::string agree_on_run_id(comm::Collectives& everyone, std::chrono::milliseconds timeout);

}  // namespace orthant::launch
