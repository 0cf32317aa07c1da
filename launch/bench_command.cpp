// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/bench_command.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <thread>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/atomic_file.hpp>
#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/local_fabric.hpp>
#include <orthant/core/comm/mpi_fabric.hpp>
#include <orthant/launch/emulation.hpp>
#include <orthant/launch/schedule_options.hpp>
#include <orthant/pipeline/cost/svg.hpp>

namespace orthant::launch {
namespace {

constexpr double kNoiseLimitMs = 1.0;
constexpr int kAttempts = 3;
constexpr std::chrono::seconds kTimeout{120};

struct BenchArguments {
  ScheduleOptions schedule;
  int steps = 5;
  bool late_receives = false;
  bool json = false;
  std::string svg;
};

struct Bench {
  Emulation emulation;
  double noise_ms = 0;  ///< the larger of before and after
  int attempts = 0;
  bool busy() const { return noise_ms > kNoiseLimitMs; }
};

/// Measures until the machine was quiet before and after. Collective over `fabric`; the result is rank 0's.
Bench measure(const SchedulePlan& plan, const EmulationOptions& options, comm::Fabric& fabric) {
  std::vector<int> everybody(static_cast<std::size_t>(fabric.size()));
  for (int rank = 0; rank < fabric.size(); ++rank) everybody[static_cast<std::size_t>(rank)] = rank;
  const auto all = fabric.make_collectives("bench", everybody);
  const auto noise_ms = [&] {
    double noise = fabric.rank() == 0 ? wake_up_noise_ms() : 0;
    all->all_reduce({&noise, 1, DType::f64}, comm::Reduction::max).wait(kTimeout);
    return noise;
  };
  Bench bench;
  do {
    ++bench.attempts;
    const double before = noise_ms();
    bench.emulation = emulate(plan.lowered, options, fabric);
    bench.noise_ms = std::max(before, noise_ms());
  } while (bench.busy() && bench.attempts < kAttempts);
  return bench;
}

/// Every rank a thread of this process.
Bench measure_with_threads(const SchedulePlan& plan, const EmulationOptions& options) {
  const int ranks = static_cast<int>(plan.lowered.ranks.size());
  const auto world = std::make_shared<comm::LocalWorld>(ranks);
  Bench bench;
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        comm::LocalFabric fabric(world, rank);
        auto mine = measure(plan, options, fabric);
        if (rank == 0) bench = std::move(mine);
      } catch (...) {
        failures[static_cast<std::size_t>(rank)] = std::current_exception();
        world->abort(fmt::format("rank {} failed", rank));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return bench;
}

nlohmann::ordered_json report(const SchedulePlan& plan, const Bench& bench, const std::string& transport) {
  const auto predicted = pipeline::simulate(plan.lowered, plan.costs);
  const double measured = median(bench.emulation.steps).makespan_ms;
  std::vector<double> all;
  for (const auto& step : bench.emulation.steps) all.push_back(step.makespan_ms);
  return {{"schedule", plan.lowered.name},
          {"ranks", plan.lowered.ranks.size()},
          {"microbatches", plan.lowered.microbatches},
          {"slots", plan.lowered.slots},
          {"transport", transport},
          {"predicted_ms", predicted.timing.makespan},
          {"measured_ms", measured},
          {"measured_over_predicted", measured / predicted.timing.makespan},
          {"ideal_ms", predicted.timing.ideal},
          {"measured_over_ideal", measured / predicted.timing.ideal},
          {"steps_ms", all},
          {"peak_activations_predicted", predicted.timing.peak},
          {"peak_activations_measured", bench.emulation.peak_activations},
          {"noise_p99_ms", bench.noise_ms},
          {"attempts", bench.attempts},
          {"busy", bench.busy()}};
}

void write_svg(const SchedulePlan& plan, const Bench& bench, const std::string& path) {
  const auto title = fmt::format("{}, {} ranks, {} micro-batches", plan.lowered.name, plan.lowered.ranks.size(),
                                 plan.lowered.microbatches);
  const std::vector<pipeline::Panel> panels{
      pipeline::panel_of(title + ": predicted", plan.lowered, pipeline::simulate(plan.lowered, plan.costs)),
      {.title = title + ": measured", .compute = plan.compute, .ops = median(bench.emulation.steps).ops}};
  write_text_file(path, pipeline::svg(panels, {.width = 0, .time_unit = "ms"}), raise_as<ConfigError>);
}

int print(const BenchArguments& arguments, const SchedulePlan& plan, const Bench& bench, const std::string& transport) {
  const auto json = report(plan, bench, transport);
  if (!arguments.svg.empty()) write_svg(plan, bench, arguments.svg);
  if (arguments.json) {
    fmt::print("{}\n", json.dump());
  } else {
    fmt::print("{} on {} emulated ranks ({}), {} micro-batches\n", plan.lowered.name, plan.lowered.ranks.size(),
               transport, plan.lowered.microbatches);
    fmt::print("  predicted {:10.2f} ms a step\n  measured  {:10.2f} ms (median of {}), {:+.2f} %\n",
               json["predicted_ms"].get<double>(), json["measured_ms"].get<double>(), bench.emulation.steps.size(),
               100 * (json["measured_over_predicted"].get<double>() - 1));
    fmt::print("  ideal     {:10.2f} ms\n  peak activations predicted {}, measured {}\n",
               json["ideal_ms"].get<double>(), json["peak_activations_predicted"].dump(),
               json["peak_activations_measured"].dump());
  }
  if (!bench.busy()) return static_cast<int>(ExitCode::done);
  fmt::print(stderr,
             "orthant: machine busy: sleepers wake up {:.2f} ms late (99 of 100 within it; {} ms is the limit); the "
             "figures are not to be trusted\n",
             bench.noise_ms, kNoiseLimitMs);
  return static_cast<int>(ExitCode::internal);
}

int bench_pipeline(const BenchArguments& arguments) {
  ScheduleOptions schedule = arguments.schedule;
  if (schedule.bandwidth == 0) schedule.message_bytes = 0;  // of any size, they take the latency alone
  const SchedulePlan plan = plan_schedule(schedule);
  EmulationOptions options{.costs_ms = plan.costs,
                           .link = {.latency_us = plan.costs.message * 1e3, .bytes_per_us = 0},
                           .steps = arguments.steps,
                           .late_receives = arguments.late_receives};
  if (arguments.schedule.message_bytes > 0) {
    options.message_bytes = static_cast<std::int64_t>(arguments.schedule.message_bytes);
  }
  if (plan.costs.overlapped > 0)
    throw ConfigError("--overlapped: an emulated device runs F and B of a pair one after the other; leave it out");
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) {
    return print(arguments, plan, measure_with_threads(plan, options), "threads");
  }
  comm::MpiFabric fabric;
  try {
    const auto bench = measure(plan, options, fabric);
    return fabric.rank() == 0 ? print(arguments, plan, bench, "mpi") : 0;
  } catch (const Error& error) {
    fmt::print(stderr, "orthant: rank {}: {}\n", fabric.rank(), error.what());
    fabric.kill(static_cast<int>(error.exit_code()));
  }
}

}  // namespace

void add_bench_command(CLI::App& app, int& code) {
  auto* bench = app.add_subcommand("bench", "measurements");
  bench->require_subcommand(1);
  const auto arguments = std::make_shared<BenchArguments>();
  auto* command = bench->add_subcommand(
      "pipeline",
      "a schedule on emulated devices: the real executor, where computations sleep. Costs in ms. Ranks are "
      "threads, or processes under mpirun -n STAGES");
  add_shape_options(*command, arguments->schedule);
  add_cost_options(*command, arguments->schedule);
  command->add_option("--steps", arguments->steps, "measured steps")->capture_default_str();
  command->add_flag("--late-receives", arguments->late_receives, "post receives just in time: what that costs");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->add_option("--svg", arguments->svg, "write predicted and measured timeline to this file");
  command->callback([arguments, &code] { code = bench_pipeline(*arguments); });
}

}  // namespace orthant::launch
