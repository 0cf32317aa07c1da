// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/bench/bench_command.hpp>

#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/atomic_file.hpp>
#include <orthant/core/base/error.hpp>
#include <orthant/launch/bench/bench_fsdp_command.hpp>
#include <orthant/launch/bench/bench_tp_command.hpp>
#include <orthant/launch/emulation.hpp>
#include <orthant/launch/bench/quiet_run.hpp>
#include <orthant/launch/simulate/schedule_options.hpp>
#include <orthant/pipeline/cost/svg.hpp>

namespace orthant::launch {
namespace {

struct BenchArguments {
  ScheduleOptions schedule;
  int steps = 5;
  bool late_receives = false;
  int attempts = 3;
  bool json = false;
  std::string svg;
};

struct Bench {
  Emulation emulation;
  Quietness quietness;
};

nlohmann::ordered_json report(const SchedulePlan& plan, const Bench& bench, const std::string& transport) {
  const auto predicted = pipeline::simulate(plan.lowered, plan.costs);
  const double measured = median(bench.emulation.steps).makespan_ms;
  std::vector<double> all;
  for (const auto& step : bench.emulation.steps) all.push_back(step.makespan_ms);
  nlohmann::ordered_json json{{"schedule", plan.lowered.name},
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
                              {"peak_activations_measured", bench.emulation.peak_activations}};
  add_quietness(json, bench.quietness);
  return json;
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
  return report_quietness(bench.quietness);
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
  int code = 0;
  run_on_ranks(static_cast<int>(plan.lowered.ranks.size()), [&](comm::Fabric& fabric) {
    Bench bench;
    bench.quietness =
        measure_quietly(fabric, arguments.attempts, [&] { bench.emulation = emulate(plan.lowered, options, fabric); });
    if (fabric.rank() == 0) code = print(arguments, plan, bench, under_mpirun() ? "mpi" : "threads");
  });
  return code;
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
  add_attempts_option(*command, arguments->attempts);
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->add_option("--svg", arguments->svg, "write predicted and measured timeline to this file");
  command->callback([arguments, &code] { code = bench_pipeline(*arguments); });
  add_bench_fsdp_command(*bench, code);
  add_bench_tp_command(*bench, code);
}

}  // namespace orthant::launch
