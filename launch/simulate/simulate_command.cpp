// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/simulate/simulate_command.hpp>

#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/atomic_file.hpp>
#include <orthant/core/base/error.hpp>
#include <orthant/launch/simulate/schedule_options.hpp>
#include <orthant/pipeline/cost/draw.hpp>
#include <orthant/pipeline/cost/report.hpp>
#include <orthant/pipeline/cost/svg.hpp>
#include <orthant/pipeline/plan/expand.hpp>

namespace orthant::launch {
namespace {

struct SimulateArguments {
  ScheduleOptions schedule;
  bool json = false;
  bool text = false;
  std::string svg;
  int resident_stages = 0;
};

/// How often each rank gathers a stage's weights in one step, with that many stages gathered at once (0: all).
std::vector<int> gathers_per_rank(const pipeline::Schedule& lowered, int resident_stages) {
  std::vector<int> gathers;
  for (std::size_t rank = 0; rank < lowered.ranks.size(); ++rank) {
    std::vector<train::StageLayout> stages;
    for (const StageId stage : lowered.stages_of(static_cast<int>(rank))) {
      stages.push_back({.stage = stage, .layers = {{.layer = LayerId{stage.value}, .main = UnitId{stage.value}}}});
    }
    gathers.push_back(
        pipeline::count_gathers(pipeline::expand(lowered.ranks[rank], stages, {.window = resident_stages})));
  }
  return gathers;
}

int run(const SimulateArguments& arguments) {
  const SchedulePlan plan = plan_schedule(arguments.schedule);
  const pipeline::Simulation simulation = pipeline::simulate(plan.lowered, plan.costs, plan.memory);
  for (const std::string& note : plan.notes) fmt::print(stderr, "orthant: note: {}\n", note);
  if (!arguments.svg.empty()) {
    const std::string title = fmt::format("{}, {} ranks, {} micro-batches", plan.lowered.name,
                                          plan.lowered.ranks.size(), plan.lowered.microbatches);
    write_text_file(arguments.svg, pipeline::svg({pipeline::panel_of(title, plan.lowered, simulation)}),
                    raise_as<ConfigError>);
  }
  const auto gathers = gathers_per_rank(plan.lowered, arguments.resident_stages);
  if (arguments.json) {
    auto report = pipeline::report_json(plan.lowered, simulation);
    report["gathers_per_rank"] = gathers;
    fmt::print("{}\n", report.dump());
  } else {
    fmt::print("{}", pipeline::report_table(plan.lowered, simulation));
    fmt::print("gathers of a stage's weights, per rank: {}\n", fmt::join(gathers, ", "));
    if (arguments.text) fmt::print("{}", pipeline::draw(plan.compute, simulation.timing.ops));
  }
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void add_simulate_command(CLI::App& app, int& code) {
  const auto arguments = std::make_shared<SimulateArguments>();
  auto* command = app.add_subcommand("simulate", "what a pipeline schedule costs: time, idle time, memory");
  add_shape_options(*command, arguments->schedule);
  add_cost_options(*command, arguments->schedule);
  command
      ->add_option("--resident-stages", arguments->resident_stages,
                   "stages of a rank whose sharded weights are gathered at once; 0: all, for the whole step")
      ->check(CLI::Range(0, 256));
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->add_flag("--text", arguments->text, "print the timeline, too");
  command->add_option("--svg", arguments->svg, "write the timeline to this file");
  command->callback([arguments, &code] { code = run(*arguments); });
}

}  // namespace orthant::launch
