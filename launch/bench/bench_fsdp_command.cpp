// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/bench/bench_fsdp_command.hpp>

#include <algorithm>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/atomic_file.hpp>
#include <orthant/core/base/error.hpp>
#include <orthant/launch/bench/fsdp_bench.hpp>
#include <orthant/launch/bench/quiet_run.hpp>
#include <orthant/launch/bench/stream_timeline.hpp>

namespace orthant::launch {
namespace {

struct FsdpArguments {
  FsdpBenchOptions options;
  std::vector<FsdpMode> modes{kFsdpModes.begin(), kFsdpModes.end()};
  int ranks = 2;  ///< without mpirun
  int attempts = 3;
  bool json = false;
  std::string svg;
};

struct FsdpBench {
  std::vector<FsdpRun> runs;
  Quietness quietness;
};

constexpr const char* kAssumptions =
    R"(What the modes are. Every engine may hold two layers' weights and two layers' gradients, and gathers one layer ahead.
  overlap     fsdp::Engine: gathered and reduced in place, gathers and reductions on a stream each.
  no-overlap  the same tasks, each after the one before.
  per-tensor  ZeRO as DeepSpeed has it: each of --tensors tensors is gathered, and reduced after a copy to a bucket, by
              itself. A tensor's collective takes --latency and its part of the rest; its forward and backward wait for
              it alone. One communication stream: a process group's operations run in order.
  copy-in     FSDP: whole layers; a copy out of the gather's landing buffer, and one into the bucket before each
              reduction, --copy ms each, on the one communication stream: gathers wait behind copies, and computation
              for gathers (the herringbone).
Times are given, not measured. In favour of the baselines copies do not slow computations down, and all memory is there
from the start. The optimizer step waits for all reductions, as with clipping, and takes no time.)";

nlohmann::ordered_json json_of(const FsdpRun& run, double overlap_ms) {
  const FsdpStep& step = median(run.steps);
  std::vector<double> all;
  for (const auto& measured : run.steps) all.push_back(measured.step_ms);
  nlohmann::ordered_json json{{"mode", name_of(run.mode)},
                              {"streams", run.streams.size() == 3 ? "separate" : "shared"},
                              {"step_ms", step.step_ms},
                              {"compute_ms", step.compute_ms},
                              {"exposed_ms", step.exposed_ms()},
                              {"exposed_share", step.exposed_share()},
                              {"exposed_gather_ms", step.gather_ms},
                              {"exposed_reduce_ms", step.reduce_ms},
                              {"exposed_copy_ms", step.copy_ms},
                              {"other_ms", step.other_ms},
                              {"predicted_step_ms", run.predicted.step_ms},
                              {"predicted_exposed_share", run.predicted.exposed_share()},
                              {"steps_ms", all}};
  if (overlap_ms > 0) json["over_overlap"] = step.step_ms / overlap_ms;
  return json;
}

double overlap_ms(const FsdpBench& bench) {
  const auto run = std::ranges::find(bench.runs, FsdpMode::overlap, &FsdpRun::mode);
  return run == bench.runs.end() ? 0 : median(run->steps).step_ms;
}

void print_json(const FsdpArguments& arguments, const FsdpBench& bench, int ranks) {
  const auto& o = arguments.options;
  nlohmann::ordered_json json{{"ranks", ranks},
                              {"transport", under_mpirun() ? "mpi" : "threads"},
                              {"layers", o.layers},
                              {"forward_ms", o.forward_ms},
                              {"backward_ms", o.backward_ms},
                              {"gather_ms", o.gather_ms},
                              {"reduce_ms", o.reduce_ms},
                              {"tensors", o.tensors},
                              {"latency_ms", o.latency_ms},
                              {"copy_ms", o.copy_ms},
                              {"modes", nlohmann::ordered_json::array()}};
  for (const auto& run : bench.runs) json["modes"].push_back(json_of(run, overlap_ms(bench)));
  add_quietness(json, bench.quietness);
  fmt::print("{}\n", json.dump());
}

void print_table(const FsdpArguments& arguments, const FsdpBench& bench, int ranks) {
  const auto& o = arguments.options;
  fmt::print(
      "{} layers on {} emulated ranks ({}); ms a layer: forward {}, backward {}, gather {}, reduce {}; median of {}\n"
      "                        step  compute  exposed              gather  reduce    copy   other   predicted  to "
      "overlap\n",
      o.layers, ranks, under_mpirun() ? "mpi" : "threads", o.forward_ms, o.backward_ms, o.gather_ms, o.reduce_ms,
      o.steps);
  const double reference = overlap_ms(bench);
  for (const auto& run : bench.runs) {
    const FsdpStep& step = median(run.steps);
    fmt::print("  {:<10}  {:<8} {:7.1f}  {:7.1f}  {:7.1f} {:7.2f} %   {:7.1f} {:7.1f} {:7.1f} {:7.1f}  {:7.2f} %  {}\n",
               name_of(run.mode), run.streams.size() == 3 ? "separate" : "shared", step.step_ms, step.compute_ms,
               step.exposed_ms(), 100 * step.exposed_share(), step.gather_ms, step.reduce_ms, step.copy_ms,
               step.other_ms, 100 * run.predicted.exposed_share(),
               reference > 0 ? fmt::format("{:9.3f}", step.step_ms / reference) : "        -");
  }
}

TimelinePanel panel_of(const FsdpRun& run) {
  const FsdpStep& step = median(run.steps);
  TimelinePanel panel{.title = fmt::format("{}: {:.0f} ms a step, {:.1f} % exposed", name_of(run.mode), step.step_ms,
                                           100 * step.exposed_share()),
                      .rows = run.streams,
                      .boxes = {},
                      .end_ms = step.step_ms};
  for (const FsdpBox& box : step.boxes) {
    if (box.task == FsdpTask::step) continue;
    const bool of_a_tensor = run.mode == FsdpMode::per_tensor;
    panel.boxes.push_back({.row = box.stream.value,
                           .kind = static_cast<int>(box.task),
                           .begin_ms = box.begin_ms,
                           .end_ms = box.end_ms,
                           .label = of_a_tensor ? "" : std::to_string(box.layer)});
  }
  return panel;
}

void write_svg(const FsdpBench& bench, const std::string& path) {
  std::vector<TimelinePanel> panels;
  for (const auto& run : bench.runs) panels.push_back(panel_of(run));
  const std::vector<TimelineKind> kinds{{"forward", "#5b9bf3"},
                                        {"backward", "#b18af0"},
                                        {"gather", "#4fc38a"},
                                        {"reduce", "#f2b84b"},
                                        {"copy", "#8c959f"}};
  write_text_file(path, stream_timeline(panels, kinds), raise_as<ConfigError>);
}

int bench_fsdp(const FsdpArguments& arguments) {
  for (const FsdpMode mode : arguments.modes) check(mode, arguments.options);
  int code = 0;
  run_on_ranks(arguments.ranks, [&](comm::Fabric& fabric) {
    FsdpBench bench;
    bench.quietness = measure_quietly(fabric, arguments.attempts, [&] {
      bench.runs.clear();
      for (const FsdpMode mode : arguments.modes) bench.runs.push_back(run_fsdp(mode, arguments.options, fabric));
    });
    if (fabric.rank() != 0) return;
    if (!arguments.svg.empty()) write_svg(bench, arguments.svg);
    arguments.json ? print_json(arguments, bench, fabric.size()) : print_table(arguments, bench, fabric.size());
    code = report_quietness(bench.quietness);
  });
  return code;
}

/// One mode, or "all".
void add_mode_option(CLI::App& command, FsdpArguments& arguments) {
  std::vector<std::string> names{"all"};
  for (const FsdpMode mode : kFsdpModes) names.push_back(name_of(mode));
  command
      .add_option_function<std::string>(
          "--mode",
          [&arguments](const std::string& name) {
            if (name == "all") return;
            std::erase_if(arguments.modes, [&](FsdpMode mode) { return name_of(mode) != name; });
          },
          "which to measure (default: all)")
      ->check(CLI::IsMember(names));
}

void add_streams_option(CLI::App& command, FsdpBenchOptions& options) {
  command
      .add_option_function<std::string>(
          "--streams",
          [&options](const std::string& name) {
            options.streams = name == "shared" ? FsdpStreams::shared : FsdpStreams::separate;
          },
          "of communication, for every mode (default: as said below)")
      ->check(CLI::IsMember({"separate", "shared"}));
}

}  // namespace

void add_bench_fsdp_command(CLI::App& bench, int& code) {
  const auto arguments = std::make_shared<FsdpArguments>();
  auto* command = bench.add_subcommand(
      "fsdp",
      "sharded data parallelism on emulated devices: the real engine, where computations and links take a given time, "
      "beside the schedules of other engines. Ranks are threads, or processes under mpirun -n RANKS");
  FsdpBenchOptions& options = arguments->options;
  const auto add = [&](const char* name, auto& value, const char* text, CLI::Validator valid) {
    command->add_option(name, value, text)->capture_default_str()->check(valid);
  };
  const CLI::Range positive(1e-3, 1e6), not_negative(0.0, 1e6);
  add_mode_option(*command, *arguments);
  add("--layers", options.layers, "equal layers", CLI::Range(1, 1000));
  add("--forward", options.forward_ms, "ms of a layer's forward", positive);
  add("--backward", options.backward_ms, "ms of a layer's backward", positive);
  add("--gather", options.gather_ms, "ms of a layer's all-gather", positive);
  add("--reduce", options.reduce_ms, "ms of a layer's reduce-scatter", positive);
  add_streams_option(*command, options);
  add("--tensors", options.tensors, "per-tensor: tensors in a layer", CLI::Range(1, 1000));
  add("--latency", options.latency_ms, "per-tensor: ms of a collective that no message is too small for", not_negative);
  add("--copy", options.copy_ms, "per-tensor, copy-in: ms of one copy of a layer", not_negative);
  add("--steps", options.steps, "measured steps, after two that are not", CLI::Range(1, 1000));
  add("--ranks", arguments->ranks, "threads, without mpirun", CLI::Range(1, 64));
  add_attempts_option(*command, arguments->attempts);
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->add_option("--svg", arguments->svg, "write the median step of each mode to this file");
  command->footer(kAssumptions);
  command->callback([arguments, &code] { code = bench_fsdp(*arguments); });
}

}  // namespace orthant::launch
