// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/train_command.hpp>

#include <atomic>
#include <optional>
#include <thread>

#include <sys/stat.h>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/mpi_fabric.hpp>
#include <orthant/core/memory/counting_allocator.hpp>
#include <orthant/launch/emulated_run.hpp>
#include <orthant/launch/rank_run.hpp>
#include <orthant/launch/startup.hpp>

namespace orthant::launch {
namespace {

/// All ranks find the same faults in the same config: rank 0 tells, the others follow quietly. A time-out is a rank's
/// own.
int report_once(const comm::Fabric& fabric, const Error& error) {
  if (fabric.rank() == 0 || error.exit_code() == ExitCode::timed_out)
    fmt::print(stderr, "orthant: error:\n{}\n", error.what());
  return static_cast<int>(error.exit_code());
}

}  // namespace

int train_command(const TrainArguments& arguments) {
  ::umask(077);                          // what a run writes is its owner's
  memory::CountingAllocator::install();  // before any tensor
  comm::FlightRecorder recorder;         // outlives MPI, which ends what is open
  comm::MpiFabric mpi;
  comm::WatchedFabric fabric(mpi, recorder);
  RunConfig run;
  try {
    run = read_run_config_together(fabric, arguments.config, arguments.overrides);
  } catch (const Error& error) {
    const int code = report_once(fabric, error);
    if (error.exit_code() == ExitCode::timed_out) mpi.kill(code);  // MPI is left together, and not all ranks are there
    return code;
  }
  // The watchdog outlives the run, whose last tasks still report to it.
  std::atomic<RankRun*> running = nullptr;
  Watchdog watchdog({.recorder = recorder,
                     .rank = fabric.rank(),
                     .size = fabric.size(),
                     .timeouts = phase_timeouts(run),
                     .kill = [&](int code) {
                       if (auto* hanging = running.load()) hanging->note_hang();
                       mpi.kill(code);
                     }});
  std::optional<RankRun> rank_run;
  const auto die = [&](const char* what, ExitCode code) {
    // A rank that only heard of a failure lets the one that failed speak first, and end the job with its own exit code;
    // of a fault that all ranks find alike (data, weights, a loss that is not finite), rank 0 speaks for them.
    const bool found_alike = code != ExitCode::internal && fabric.rank() != 0;
    if (code == ExitCode::timed_out || found_alike)
      std::this_thread::sleep_for(std::chrono::seconds(mpi.heard_abort() ? 5 : 2));
    fmt::print(stderr, "orthant: rank {} ({}), step {}: {}\n", fabric.rank(), rank_run ? rank_run->where() : "at start",
               rank_run ? rank_run->step() : 0, what);
    std::fflush(stderr);
    mpi.kill(static_cast<int>(code));
  };
  try {
    if (run.device == "emulated") return emulated_run(run, mpi, [&] { watchdog.progress(); });
    rank_run.emplace(run, fabric, watchdog);
    running = &*rank_run;
    const int code = rank_run->execute(arguments);
    running = nullptr;
    return code;
  } catch (const Error& error) {
    die(error.what(), error.exit_code());
  } catch (const std::exception& error) {
    die(error.what(), ExitCode::internal);
  }
  return static_cast<int>(ExitCode::internal);
}

}  // namespace orthant::launch
