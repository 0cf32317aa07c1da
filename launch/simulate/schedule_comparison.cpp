// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/simulate/schedule_comparison.hpp>

#include <algorithm>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/error.hpp>
#include <orthant/launch/simulate/schedule_options.hpp>
#include <orthant/pipeline/cost/report.hpp>
#include <orthant/pipeline/cost/simulate.hpp>
#include <orthant/pipeline/generate/catalog.hpp>
#include <orthant/pipeline/plan/lower.hpp>

namespace orthant::launch {
namespace {

using namespace pipeline;

ScheduleFigures figures_of(ScheduleRequest request, const Costs& costs) {
  const Schedule shape = make_schedule(request);
  // Two copies of the pipeline have two stages a rank, but each is as large as the one of a single pipeline.
  const double share = static_cast<double>(shape.depth()) / static_cast<double>(shape.ranks.size());
  const StageCosts& whole = costs.stages.front();
  request.costs = {.stages = {{whole.forward / share, whole.input / share, whole.weight / share}},
                   .message = costs.message,
                   .overlapped = costs.overlapped / share};
  const Schedule schedule = make_schedule(request);
  const Schedule lowered = lower(schedule, slots_for(schedule));
  const Timing timing = simulate(lowered, request.costs).timing;
  return {.schedule = request.name,
          .chunks = schedule.stages / static_cast<int>(schedule.ranks.size()),
          .slots = lowered.slots,
          .makespan = timing.makespan,
          .bubble_rate = bubble_rate(timing),
          .bubble_span_rate = timing.span > 0 ? timing.bubble_span() / timing.span : 0,
          .peak_activations = std::ranges::max(timing.peak) / share};
}

nlohmann::ordered_json to_json(const ScheduleComparison& comparison) {
  auto schedules = nlohmann::ordered_json::array(), refused = nlohmann::ordered_json::array();
  for (const ScheduleFigures& figures : comparison.schedules) {
    schedules.push_back({{"schedule", figures.schedule},
                         {"chunks", figures.chunks},
                         {"slots", figures.slots},
                         {"makespan", number_json(figures.makespan)},
                         {"bubble_rate", number_json(figures.bubble_rate)},
                         {"bubble_span_rate", number_json(figures.bubble_span_rate)},
                         {"peak_activations", number_json(figures.peak_activations)}});
  }
  for (const auto& [schedule, why] : comparison.refused) refused.push_back({{"schedule", schedule}, {"why", why}});
  return {{"schedules", std::move(schedules)}, {"not_possible", std::move(refused)}};
}

/// One table; `line` has the columns name, chunks, makespan, two rates, peak, slots.
std::string table(const ScheduleComparison& comparison, fmt::string_view line) {
  const auto row = [&](const auto&... cells) { return fmt::format(fmt::runtime(line), cells...); };
  const auto percent = [](double rate) { return fmt::format("{:.1f} %", 100 * rate); };
  std::string text = row("schedule", "chunks", "makespan", "bubble", "of span", "peak", "slots");
  for (const ScheduleFigures& figures : comparison.schedules) {
    text += row(figures.schedule, std::to_string(figures.chunks), number_text(figures.makespan),
                percent(figures.bubble_rate), percent(figures.bubble_span_rate),
                number_text(figures.peak_activations, 2), std::to_string(figures.slots));
  }
  return text;
}

std::string refusals(const ScheduleComparison& comparison, std::string_view lead) {
  std::string text;
  for (const auto& refusal : comparison.refused) text += fmt::format("{}{}\n", lead, refusal.why);
  return text;
}

}  // namespace

ScheduleComparison compare_schedules(int ranks, int microbatches, const Costs& costs) {
  invariant(costs.stages.size() == 1, "compare_schedules() takes uniform costs");
  ScheduleComparison comparison;
  for (const std::string_view name : schedule_names()) {
    const ScheduleRequest request{.name = std::string(name), .ranks = ranks, .microbatches = microbatches};
    const std::string why = broken_rule(request);
    if (why.empty()) {
      comparison.schedules.push_back(figures_of(request, costs));
    } else {
      comparison.refused.push_back({request.name, why});
    }
  }
  return comparison;
}

void add_schedule_comparison(CLI::App& app, int& code) {
  struct Arguments {
    ScheduleOptions schedule;
    bool json = false;
    bool markdown = false;
  };
  const auto arguments = std::make_shared<Arguments>();
  auto* command = app.add_subcommand("compare", "bubble and memory of every schedule for the same model");
  command->add_option("--stages", arguments->schedule.stages, "pipeline degree: ranks in a pipeline")
      ->check(CLI::Range(1, 256))
      ->required();
  command->add_option("--microbatches", arguments->schedule.microbatches, "micro-batches of a step")
      ->check(CLI::Range(1, 4096))
      ->required();
  command->add_option("--costs", arguments->schedule.costs,
                      "F,I,W[,C] of all layers of a rank, which schedules with v chunks split; default 1,1,1,0");
  command->add_option("--overlapped", arguments->schedule.overlapped,
                      "cost of an overlapped F and B of all layers of a rank; default: the sum of both");
  auto* json = command->add_flag("--json", arguments->json, "print one JSON object");
  command->add_flag("--markdown", arguments->markdown, "print a Markdown table")->excludes(json);
  command->callback([arguments, &code] {
    const auto& [schedule, as_json, as_markdown] = *arguments;
    const ScheduleComparison comparison = compare_schedules(schedule.stages, schedule.microbatches, costs_of(schedule));
    if (as_json) {
      fmt::print("{}\n", to_json(comparison).dump(2));
    } else if (as_markdown) {
      std::string text = table(comparison, "| {} | {} | {} | {} | {} | {} | {} |\n");
      text.insert(text.find('\n') + 1, "|---|---|---|---|---|---|---|\n");
      fmt::print("{}\n{}", text, refusals(comparison, "- not possible: "));
    } else {
      fmt::print("{}{}", table(comparison, "{:<16} {:>6} {:>12} {:>8} {:>8} {:>8} {:>6}\n"),
                 refusals(comparison, "not possible: "));
    }
    code = static_cast<int>(ExitCode::done);
  });
}

}  // namespace orthant::launch
