// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/quiet_run.hpp>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include <fmt/format.h>

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

}  // namespace

Quietness measure_quietly(comm::Fabric& fabric, const std::function<void()>& measure) {
  constexpr std::chrono::seconds kTimeout{120};
  constexpr int kAttempts = 3;
  std::vector<int> everybody(static_cast<std::size_t>(fabric.size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  const auto all = fabric.make_collectives("bench", everybody);
  const auto noise_ms = [&] {
    double noise = fabric.rank() == 0 ? wake_up_noise_ms() : 0;
    all->all_reduce({&noise, 1, DType::f64}, comm::Reduction::max).wait(kTimeout);
    return noise;
  };
  Quietness quietness;
  do {
    ++quietness.attempts;
    const double before = noise_ms();
    measure();
    quietness.noise_ms = std::max(before, noise_ms());
  } while (quietness.busy() && quietness.attempts < kAttempts);
  return quietness;
}

int report_quietness(const Quietness& quietness) {
  if (!quietness.busy()) return static_cast<int>(ExitCode::done);
  fmt::print(stderr,
             "orthant: machine busy: sleepers wake up {:.2f} ms late (99 of 100 within it; 1 ms is the limit); the "
             "figures are not to be trusted\n",
             quietness.noise_ms);
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
