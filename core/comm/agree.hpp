// SPDX-License-Identifier: Apache-2.0
// Blocking conveniences for the time outside steps: start, save, end. Each is a collective over the communicator that
// it is given and throws CommError, naming the operation, when `timeout` runs out.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <orthant/core/comm/collectives.hpp>

namespace orthant::comm {

/// Every rank's text, in rank order, on every rank.
std::vector<std::string> gather_strings(Collectives&, const std::string& mine, std::chrono::milliseconds timeout);

/// Returns when all ranks have called it.
void barrier(Collectives&, std::chrono::milliseconds timeout);

/// Throws InternalError on every rank, naming `what` and the ranks in the minority, unless all ranks pass the same
/// hash.
void check_same(Collectives&, const std::string& what, std::uint64_t hash, std::chrono::milliseconds timeout);

}  // namespace orthant::comm
