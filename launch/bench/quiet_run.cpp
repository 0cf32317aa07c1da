// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/bench/quiet_run.hpp>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/local_fabric.hpp>
#include <orthant/core/comm/mpi_fabric.hpp>
#include <orthant/launch/emulation.hpp>

namespace orthant::launch {

namespace {

void run_as_threads(int ranks, const std::function<void(comm::Fabric&)>& rank) {
  const auto world = std::make_shared<comm::LocalWorld>(ranks);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int i = 0; i < ranks; ++i) {
    threads.emplace_back([&, i] {
      try {
        comm::LocalFabric fabric(world, i);
        rank(fabric);
      } catch (...) {
        failures[static_cast<std::size_t>(i)] = std::current_exception();
        world->abort(fmt::format("rank {} failed", i));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

void run_as_process(const std::function<void(comm::Fabric&)>& rank) {
  comm::MpiFabric fabric;
  try {
    rank(fabric);
  } catch (const Error& error) {
    fmt::print(stderr, "orthant: rank {}: {}\n", fabric.rank(), error.what());
    fabric.kill(static_cast<int>(error.exit_code()));
  }
}

/// Of all processors of this host since it started: used by anybody or taken by its own host, and passed.
struct HostSeconds {
  double used = 0, all = 0;
  HostSeconds operator-(const HostSeconds& other) const { return {used - other.used, all - other.all}; }
};

/// The first line of /proc/stat; zero where there is none.
HostSeconds host_seconds() {
  std::ifstream file("/proc/stat");
  std::string cpu;
  file >> cpu;
  HostSeconds host;
  double ticks = 0;
  for (int column = 0; column < 8 && file >> ticks; ++column) {  // user nice system idle iowait irq softirq steal
    host.all += ticks;
    if (column != 3 && column != 4) host.used += ticks;
  }
  const auto per_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
  return {host.used / per_second, host.all / per_second};
}

double process_seconds() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

void add_attempts_option(CLI::App& command, int& attempts) {
  command.add_option("--attempts", attempts, "measure again, so often in all, while the machine is busy")
      ->capture_default_str()
      ->check(CLI::Range(1, 100));
}

Quietness measure_quietly(comm::Fabric& fabric, int attempts, const std::function<void()>& measure) {
  constexpr std::chrono::seconds kTimeout{120};
  const auto all = fabric.make_collectives("bench", fabric.all_ranks());
  const auto over_ranks = [&](double value, comm::Reduction reduction) {
    all->all_reduce({&value, 1, DType::f64}, reduction).wait(kTimeout);
    return value;
  };
  const auto noise_ms = [&] { return over_ranks(fabric.rank() == 0 ? wake_up_noise_ms() : 0, comm::Reduction::max); };
  // Threads share one process, whose time counts once.
  const bool counts = under_mpirun() || fabric.rank() == 0;
  const auto own_seconds = [&] { return over_ranks(counts ? process_seconds() : 0, comm::Reduction::sum); };
  Quietness quietness;
  do {
    ++quietness.attempts;
    const double before = noise_ms();
    const double own_before = own_seconds();
    const HostSeconds host_before = host_seconds();
    measure();
    const HostSeconds host = host_seconds() - host_before;
    const double own = own_seconds() - own_before;
    const double share = host.all > 0 ? std::max(0.0, (host.used - own) / host.all) : 0;
    quietness.foreign_share = over_ranks(share, comm::Reduction::max);
    quietness.noise_ms = std::max(before, noise_ms());
  } while (quietness.busy() && quietness.attempts < attempts);
  return quietness;
}

void add_quietness(nlohmann::ordered_json& json, const Quietness& quietness) {
  json["noise_p99_ms"] = quietness.noise_ms;
  json["foreign_cpu_share"] = quietness.foreign_share;
  json["attempts"] = quietness.attempts;
  json["busy"] = quietness.busy();
}

int report_quietness(const Quietness& quietness) {
  if (!quietness.busy()) return static_cast<int>(ExitCode::done);
  fmt::print(stderr,
             "orthant: machine busy: sleepers wake up {:.2f} ms late (99 of 100 within it; {} ms is the limit), others "
             "use {:.1f} % of the processors (limit {} %); the figures are not to be trusted\n",
             quietness.noise_ms, Quietness::kNoiseLimitMs, 100 * quietness.foreign_share,
             100 * Quietness::kForeignLimit);
  return static_cast<int>(ExitCode::internal);
}

bool under_mpirun() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

void run_on_ranks(int threads, const std::function<void(comm::Fabric&)>& rank) {
  if (under_mpirun()) {
    run_as_process(rank);
  } else {
    run_as_threads(threads, rank);
  }
}

}  // namespace orthant::launch
