// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/bench/bench_tp_command.hpp>

#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/atomic_file.hpp>
#include <orthant/core/base/error.hpp>
#include <orthant/launch/bench/quiet_run.hpp>
#include <orthant/launch/bench/stream_timeline.hpp>
#include <orthant/launch/bench/tp_bench.hpp>

namespace orthant::launch {
namespace {

struct TpArguments {
  TpBenchOptions options;
  int ranks = 2;  ///< without mpirun
  int attempts = 3;
  bool json = false;
  std::string svg;
};

struct TpBench {
  std::vector<TpRun> runs;
  Quietness quietness;
};

void print_json(const TpArguments& arguments, const TpBench& bench, int ranks) {
  const auto& o = arguments.options;
  nlohmann::ordered_json json{{"ranks", ranks},
                              {"transport", under_mpirun() ? "mpi" : "threads"},
                              {"layers", o.layers},
                              {"product_ms", o.product_ms},
                              {"collective_ms", o.collective_ms},
                              {"pieces", o.pieces},
                              {"modes", nlohmann::ordered_json::array()}};
  for (const auto& run : bench.runs) {
    const auto& pass = run.median();
    json["modes"].push_back({{"mode", name_of(run.mode)},
                             {"pass_ms", pass.ms},
                             {"compute_ms", pass.compute_ms},
                             {"exposed_ms", pass.exposed_ms()},
                             {"predicted_exposed_ms", run.predicted_exposed_ms}});
  }
  add_quietness(json, bench.quietness);
  fmt::print("{}\n", json.dump());
}

void print_table(const TpArguments& arguments, const TpBench& bench, int ranks) {
  const auto& o = arguments.options;
  fmt::print(
      "{} pairs of a column- and a row-parallel layer on {} emulated ranks ({}); ms: product {}, collective {}; median "
      "of {}\n"
      "                             pass  products   exposed  predicted\n",
      o.layers, ranks, under_mpirun() ? "mpi" : "threads", o.product_ms, o.collective_ms, o.steps);
  for (const auto& run : bench.runs) {
    const auto& pass = run.median();
    fmt::print("  {:<22} {:8.1f}  {:8.1f}  {:8.1f}   {:8.1f}\n", name_of(run.mode), pass.ms, pass.compute_ms,
               pass.exposed_ms(), run.predicted_exposed_ms);
  }
}

void write_svg(const TpBench& bench, const std::string& path) {
  std::vector<TimelinePanel> panels;
  for (const auto& run : bench.runs) {
    const auto& pass = run.median();
    panels.push_back(
        {.title = fmt::format("{}: {:.0f} ms, {:.0f} exposed", name_of(run.mode), pass.ms, pass.exposed_ms()),
         .rows = {"compute", "tp"},
         .boxes = {},
         .end_ms = pass.ms});
    for (const TpBox& box : pass.boxes) {
      panels.back().boxes.push_back({.row = box.kind == TpBoxKind::product ? 0 : 1,
                                     .kind = static_cast<int>(box.kind),
                                     .begin_ms = box.begin_ms,
                                     .end_ms = box.end_ms});
    }
  }
  const std::vector<TimelineKind> kinds{{"product", "#5b9bf3"}, {"gather", "#4fc38a"}, {"sum", "#f2b84b"}};
  write_text_file(path, stream_timeline(panels, kinds), raise_as<ConfigError>);
}

int bench_tp(const TpArguments& arguments) {
  int code = 0;
  run_on_ranks(arguments.ranks, [&](comm::Fabric& fabric) {
    if (fabric.size() < 2) throw ConfigError("bench tp: one rank has nobody to talk to; start two at least");
    TpBench bench;
    bench.quietness = measure_quietly(fabric, arguments.attempts, [&] {
      bench.runs.clear();
      for (const TpMode mode : kTpModes) bench.runs.push_back(run_tp(mode, arguments.options, fabric));
    });
    if (fabric.rank() != 0) return;
    if (!arguments.svg.empty()) write_svg(bench, arguments.svg);
    arguments.json ? print_json(arguments, bench, fabric.size()) : print_table(arguments, bench, fabric.size());
    code = report_quietness(bench.quietness);
  });
  return code;
}

}  // namespace

void add_bench_tp_command(CLI::App& bench, int& code) {
  const auto arguments = std::make_shared<TpArguments>();
  auto* command = bench.add_subcommand("tp",
                                       "tensor parallelism on emulated devices: what the real layers post, wait for "
                                       "and compute, where products and links take a given "
                                       "time. Ranks are threads, or processes under mpirun -n RANKS");
  TpBenchOptions& options = arguments->options;
  const auto add = [&](const char* name, auto& value, const char* text, CLI::Validator valid) {
    command->add_option(name, value, text)->capture_default_str()->check(valid);
  };
  const CLI::Range positive(1e-3, 1e6);
  add("--layers", options.layers, "pairs of a column- and a row-parallel layer", CLI::Range(1, 1000));
  add("--product", options.product_ms, "ms of a product", positive);
  add("--collective", options.collective_ms, "ms of a gather or sum of all rows", positive);
  add("--pieces", options.pieces, "of a gather, where forward takes them one by one", CLI::Range(2, 64));
  add("--steps", options.steps, "measured passes, after one that is not", CLI::Range(1, 1000));
  add("--ranks", arguments->ranks, "threads, without mpirun", CLI::Range(2, 64));
  add_attempts_option(*command, arguments->attempts);
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->add_option("--svg", arguments->svg, "write the median pass of each mode to this file");
  command->callback([arguments, &code] { code = bench_tp(*arguments); });
}

}  // namespace orthant::launch
