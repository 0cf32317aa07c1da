// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/simulate_command.hpp>

#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/atomic_file.hpp>
#include <orthant/core/base/error.hpp>
#include <orthant/launch/schedule_options.hpp>
#include <orthant/pipeline/cost/draw.hpp>
#include <orthant/pipeline/cost/report.hpp>
#include <orthant/pipeline/cost/svg.hpp>

namespace orthant::launch {
namespace {

struct SimulateArguments {
  ScheduleOptions schedule;
  bool json = false;
  bool text = false;
  std::string svg;
};

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
  if (arguments.json) {
    fmt::print("{}\n", pipeline::report_json(plan.lowered, simulation).dump());
  } else {
    fmt::print("{}", pipeline::report_table(plan.lowered, simulation));
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
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->add_flag("--text", arguments->text, "print the timeline, too");
  command->add_option("--svg", arguments->svg, "write the timeline to this file");
  command->callback([arguments, &code] { code = run(*arguments); });
}

}  // namespace orthant::launch
