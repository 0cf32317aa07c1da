// SPDX-License-Identifier: Apache-2.0
#include <orthant/tests/harness/run_ranks.hpp>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/local_fabric.hpp>

namespace orthant::tests {
namespace {

std::string describe(const std::vector<RankFailure>& failures) {
  std::vector<std::string> lines;
  for (const RankFailure& f : failures) {
    lines.push_back(f.rank < 0 ? "watchdog: " + f.what : fmt::format("rank {}: {}", f.rank, f.what));
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

std::string message_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception without a message";
  }
}

/// What the rank threads and the watchdog share.
struct Run {
  std::mutex mutex;
  std::condition_variable finished;
  int running = 0;
  std::vector<RankFailure> failures;
};

}  // namespace

RanksFailed::RanksFailed(std::vector<RankFailure> in_order_of_time)
    : std::runtime_error(describe(in_order_of_time)), failures(std::move(in_order_of_time)) {}

void run_ranks(int ranks, const std::function<void(comm::Fabric&)>& body, std::chrono::milliseconds watchdog) {
  const auto world = std::make_shared<comm::LocalWorld>(ranks);
  Run run;
  run.running = ranks;

  const auto run_rank = [&](int rank) {
    std::exception_ptr failed;
    try {
      comm::LocalFabric fabric(world, rank);
      body(fabric);
    } catch (...) {
      failed = std::current_exception();
    }
    bool first = false;
    {
      const std::lock_guard guard(run.mutex);
      if (failed) {
        first = run.failures.empty();
        run.failures.push_back({rank, message_of(failed), failed});
      }
    }
    if (first) world->abort(fmt::format("rank {} failed: {}", rank, message_of(failed)));
    const std::lock_guard guard(run.mutex);
    --run.running;
    run.finished.notify_one();
  };

  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run_rank, rank);

  std::unique_lock guard(run.mutex);
  const auto all_done = [&] { return run.running == 0; };
  if (!run.finished.wait_for(guard, watchdog, all_done)) {
    const auto open = world->open_operations();
    const std::string why =
        fmt::format("{} of {} ranks still run after {} ms; open: {}", run.running, ranks, watchdog.count(),
                    open.empty() ? "nothing" : fmt::format("{}", fmt::join(open, "; ")));
    run.failures.push_back({-1, why, std::make_exception_ptr(CommError(why))});
    guard.unlock();
    world->abort(why);
    guard.lock();
    if (!run.finished.wait_for(guard, std::chrono::seconds(10), all_done)) {
      std::fprintf(stderr, "run_ranks: %s; a rank does not come back, giving up\n", why.c_str());
      std::abort();
    }
  }
  guard.unlock();
  for (auto& thread : threads) thread.join();
  if (!run.failures.empty()) throw RanksFailed(std::move(run.failures));
}

}  // namespace orthant::tests
