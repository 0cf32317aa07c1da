// SPDX-License-Identifier: Apache-2.0
// Runs a test on n ranks that are threads of this process. The first rank to fail aborts the others, all failures come
// back as one exception that starts with the root cause, and nothing hangs for longer than the watchdog allows.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <orthant/core/comm/fabric.hpp>

namespace orthant::tests {

struct RankFailure {
  int rank = -1;  ///< -1: the watchdog
  std::string what;
  std::exception_ptr exception;
};

/// what(): the first line is the earliest failure with its rank; the others, mostly its consequences, follow.
struct RanksFailed : std::runtime_error {
  explicit RanksFailed(std::vector<RankFailure> in_order_of_time);
  std::vector<RankFailure> failures;
};

/// Calls `body` once on each of `ranks` threads with the rank's fabric over one LocalWorld; returns when all have.
/// watchdog  for the whole call; when it runs out, every open operation fails, and the root cause lists who waited for
/// whom. A rank
///           that does not come back even then ends the process.
/// Throws    RanksFailed if any rank threw.
void run_ranks(int ranks, const std::function<void(comm::Fabric&)>& body,
               std::chrono::milliseconds watchdog = std::chrono::seconds(60));

}  // namespace orthant::tests
