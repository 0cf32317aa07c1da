// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/simulate/schedule_options.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <string_view>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/base/split.hpp>
#include <orthant/pipeline/cost/report.hpp>
#include <orthant/pipeline/generate/catalog.hpp>
#include <orthant/pipeline/plan/lower.hpp>
#include <orthant/pipeline/plan/validate.hpp>
#include <orthant/pipeline/schedule/csv.hpp>

namespace orthant::launch {
namespace {

using namespace pipeline;

constexpr std::string_view kFile = "file:";

/// Finite numbers with commas between them, as many as one of `counts`.
std::vector<double> numbers_of(std::string_view option, std::string_view text, std::string_view wanted,
                               std::initializer_list<std::size_t> counts) {
  std::vector<double> numbers;
  for (const std::string_view part : split(text, ',')) {
    double number = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    if (error != std::errc() || end != part.data() + part.size() || !std::isfinite(number))
      throw ConfigError(fmt::format("{} {}: \"{}\" is not a number; wanted {}", option, text, part, wanted));
    numbers.push_back(number);
  }
  if (std::ranges::find(counts, numbers.size()) == counts.end())
    throw ConfigError(fmt::format("{} {}: {} number(s); wanted {}", option, text, numbers.size(), wanted));
  return numbers;
}

void require_not_negative(std::string_view option, std::string_view text, const std::vector<double>& numbers) {
  for (const double number : numbers) {
    if (number < 0) throw ConfigError(fmt::format("{} {}: {} is negative; a time is at least 0", option, text, number));
  }
}

double message_cost(const ScheduleOptions& options) {
  if (options.message_bytes > 0 && options.bandwidth <= 0) {
    throw ConfigError(
        fmt::format("--message-bytes {} without --bandwidth; give the bytes that a link moves in a unit of time",
                    options.message_bytes));
  }
  return options.latency + (options.bandwidth > 0 ? options.message_bytes / options.bandwidth : 0);
}

void require_same(std::string_view option, int given, int found, const std::string& file) {
  if (given != 0 && given != found)
    throw ConfigError(fmt::format("{} {}: {} has {}; leave the option out", option, given, file, found));
}

/// A compute-only or a lowered schedule.
CsvSchedule read_file(const ScheduleOptions& options) {
  CsvSchedule file = read_csv_file(options.schedule.substr(kFile.size()));
  const Schedule& schedule = file.schedule;
  const int ranks = static_cast<int>(schedule.ranks.size());
  require_same("--stages", options.stages, ranks, schedule.name);
  require_same("--microbatches", options.microbatches, schedule.microbatches, schedule.name);
  require_same("--chunks", options.chunks, schedule.stages / ranks, schedule.name);
  if (schedule.slots > 0) require_same("--slots", options.slots, schedule.slots, schedule.name);
  return file;
}

Schedule from_catalog(const ScheduleOptions& options, const Costs& costs, const MemoryModel& memory) {
  if (options.stages == 0 || options.microbatches == 0) {
    throw ConfigError(
        fmt::format("schedule {} is made for a number of stages and of micro-batches; give --stages and --microbatches",
                    options.schedule));
  }
  return make_schedule({.name = options.schedule,
                        .ranks = options.stages,
                        .microbatches = options.microbatches,
                        .chunks = options.chunks,
                        .costs = costs,
                        .memory = memory,
                        .memory_limit = options.memory_limit});
}

}  // namespace

void add_shape_options(CLI::App& command, ScheduleOptions& options) {
  command.add_option("--schedule", options.schedule, "a name of 'orthant schedule list', or file:PATH.csv")->required();
  command.add_option("--stages", options.stages, "pipeline degree: ranks in a pipeline")->check(CLI::Range(1, 4096));
  command.add_option("--microbatches", options.microbatches, "micro-batches of a step")->check(CLI::Range(1, 65536));
  command.add_option("--chunks", options.chunks, "stages on each rank; default: what the schedule wants")
      ->check(CLI::Range(1, 256));
}

void add_cost_options(CLI::App& command, ScheduleOptions& options) {
  const auto at_least_0 = CLI::Range(0.0, 1e300);
  auto* costs = command.add_option("--costs", options.costs,
                                   "F,I,W[,C] of a chunk: forward, input gradient, weight "
                                   "gradient, message; default 1,1,1,0");
  command.add_option("--stage-costs", options.stage_costs, "F,I,W;F,I,W;… for each stage")->excludes(costs);
  command.add_option("--latency", options.latency, "of a message, in the unit of the costs")->check(at_least_0);
  command.add_option("--bandwidth", options.bandwidth, "bytes that a link moves in a unit of time")->check(at_least_0);
  command.add_option("--message-bytes", options.message_bytes, "bytes of a message")->check(at_least_0);
  command.add_option("--overlapped", options.overlapped, "cost of an overlapped F and B; default: the sum of both")
      ->check(at_least_0);
  command.add_option("--memory", options.memory,
                     "F,I,W: how each changes the memory of activations; they sum to 0; default 1,-1,0");
  command.add_option("--memory-limit", options.memory_limit, "most memory of activations on a rank")->check(at_least_0);
  command
      .add_option("--slots", options.slots, "messages that a channel holds unread; default: what the schedule needs")
      ->check(CLI::Range(1, 65536));
}

Costs costs_of(const ScheduleOptions& options) {
  Costs costs{.message = message_cost(options), .overlapped = options.overlapped};
  if (!options.stage_costs.empty()) {
    costs.stages.clear();
    for (const std::string_view stage : split(options.stage_costs, ';')) {
      const auto numbers = numbers_of("--stage-costs", stage, "F,I,W for each stage, with ; between stages", {3});
      require_not_negative("--stage-costs", stage, numbers);
      costs.stages.push_back({numbers[0], numbers[1], numbers[2]});
    }
  } else if (!options.costs.empty()) {
    const auto numbers = numbers_of("--costs", options.costs, "F,I,W or F,I,W,C", {3, 4});
    require_not_negative("--costs", options.costs, numbers);
    costs.stages = {{numbers[0], numbers[1], numbers[2]}};
    if (numbers.size() == 4 && costs.message > 0)
      throw ConfigError(fmt::format(
          "--costs {} gives the cost of a message, and so do --latency and --bandwidth; leave one out", options.costs));
    if (numbers.size() == 4) costs.message = numbers[3];
  }
  return costs;
}

MemoryModel memory_of(const ScheduleOptions& options) {
  if (options.memory.empty()) return {};
  const auto numbers = numbers_of("--memory", options.memory, "F,I,W", {3});
  const double sum = numbers[0] + numbers[1] + numbers[2];
  if (std::abs(sum) > 1e-9 * std::abs(numbers[0])) {
    throw ConfigError(fmt::format("--memory {}: the three sum to {}; what F adds, I and W free, so they sum to 0",
                                  options.memory, number_text(sum, 9)));
  }
  return {numbers[0], numbers[1], numbers[2]};
}

Schedule lower_or_explain(const Schedule& compute, int slots) {
  try {
    return lower(compute, slots > 0 ? slots : slots_for(compute));
  } catch (const InternalError& error) {
    throw ConfigError(error.what());  // the order or the number of slots came from outside
  }
}

SchedulePlan plan_schedule(const ScheduleOptions& options) {
  SchedulePlan plan{
      .compute = {}, .lowered = {}, .costs = costs_of(options), .memory = memory_of(options), .notes = {}};
  const bool is_file = options.schedule.starts_with(kFile);
  if (is_file) {
    CsvSchedule file = read_file(options);
    plan.notes = std::move(file.notes);
    plan.compute = compute_only(file.schedule);
    plan.lowered = file.schedule.slots > 0 ? std::move(file.schedule) : lower_or_explain(plan.compute, options.slots);
  } else {
    plan.compute = from_catalog(options, plan.costs, plan.memory);
    plan.lowered = lower_or_explain(plan.compute, options.slots);
  }
  const auto stages = static_cast<std::size_t>(plan.compute.depth());
  if (plan.costs.stages.size() != 1 && plan.costs.stages.size() != stages)
    throw ConfigError(
        fmt::format("--stage-costs of {} stages; {} has {}", plan.costs.stages.size(), plan.compute.name, stages));
  const Proof proof = validate(plan.lowered, {.memory = plan.memory, .limit = options.memory_limit});
  if (!proof.problems.empty())
    throw ConfigError(
        fmt::format("{} is rejected: {}{}", plan.compute.name, proof.problems.front(),
                    proof.problems.size() > 1 ? fmt::format(" (and {} more)", proof.problems.size() - 1) : ""));
  return plan;
}

}  // namespace orthant::launch
