// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/emulated_run.hpp>

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/error.hpp>
#include <orthant/launch/emulation.hpp>
#include <orthant/launch/pipeline_plan.hpp>
#include <orthant/launch/run_folder.hpp>
#include <orthant/pipeline/cost/svg.hpp>

namespace orthant::launch {
namespace {

EmulationOptions options_of(const RunConfig& run) {
  const auto& device = run.emulated;
  return {.costs_ms = pipeline::uniform_costs({device.costs_ms[0], device.costs_ms[1], device.costs_ms[2]}),
          .link = {.latency_us = device.latency_ms * 1e3, .bytes_per_us = device.megabytes_per_s},
          .message_bytes = run.train.seq_len * run.train.micro_batch * run.model.hidden *
                           static_cast<std::int64_t>(size_of(run.train.precision)),
          .steps = static_cast<int>(run.train.steps)};
}

void report(const RunConfig& run, const PipelinePlan& plan, const EmulationOptions& options,
            const Emulation& emulation) {
  RunFolder folder(run.run_dir);
  folder.write("config.toml", run.resolved);
  for (std::size_t step = 0; step < emulation.steps.size(); ++step) {
    folder.metrics({{"step", step + 1}, {"step_ms", emulation.steps[step].makespan_ms}});
  }
  auto costs = options.costs_ms;
  costs.message = options.link.duration_us(static_cast<std::size_t>(options.message_bytes)) / 1e3;
  const auto predicted = pipeline::simulate(plan.training, costs);
  const auto& measured = median(emulation.steps);
  folder.write("summary.json", nlohmann::ordered_json{{"device", "emulated"},
                                                      {"schedule", run.pipeline.schedule},
                                                      {"steps", emulation.steps.size()},
                                                      {"predicted_step_ms", predicted.timing.makespan},
                                                      {"measured_step_ms", measured.makespan_ms},
                                                      {"ideal_step_ms", predicted.timing.ideal},
                                                      {"peak_activations_predicted", predicted.timing.peak},
                                                      {"peak_activations_measured", emulation.peak_activations}}
                                       .dump(2) +
                                   "\n");
  const auto compute = compute_only(plan.training);
  folder.write("timeline.svg", pipeline::svg({pipeline::panel_of("predicted", plan.training, predicted),
                                              {.title = "measured", .compute = compute, .ops = measured.ops}},
                                             {.width = 0, .time_unit = "ms"}));
  fmt::print(
      "schedule {} on {} emulated devices: predicted {:.2f} ms a step, measured {:.2f} ms (median of {}, {:+.2f} %)\n"
      "run folder {}\n",
      run.pipeline.schedule, run.mesh.pp, predicted.timing.makespan, measured.makespan_ms, emulation.steps.size(),
      100 * (measured.makespan_ms / predicted.timing.makespan - 1), folder.path().string());
}

}  // namespace

int emulated_run(const RunConfig& run, comm::Fabric& fabric, std::function<void()> on_step) {
  const auto plan = plan_pipeline(run);
  auto options = options_of(run);
  options.on_step = std::move(on_step);
  const auto emulation = emulate(plan.training, options, fabric);
  if (fabric.rank() == 0) report(run, plan, options, emulation);
  return static_cast<int>(ExitCode::done);
}

}  // namespace orthant::launch
