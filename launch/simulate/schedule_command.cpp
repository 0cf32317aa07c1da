// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/simulate/schedule_command.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/atomic_file.hpp>
#include <orthant/core/base/error.hpp>
#include <orthant/launch/simulate/schedule_comparison.hpp>
#include <orthant/launch/simulate/schedule_options.hpp>
#include <orthant/pipeline/cost/draw.hpp>
#include <orthant/pipeline/cost/report.hpp>
#include <orthant/pipeline/generate/catalog.hpp>
#include <orthant/pipeline/plan/validate.hpp>
#include <orthant/pipeline/schedule/csv.hpp>

namespace orthant::launch {
namespace {

using namespace pipeline;

constexpr int kDone = static_cast<int>(ExitCode::done);

/// Which numbers of micro-batches up to 4 p the schedule takes at p ranks, in words.
std::string microbatch_rule(std::string_view name, int ranks) {
  const auto is_legal = [&](int m) {
    return broken_rule({.name = std::string(name), .ranks = ranks, .microbatches = m}).empty();
  };
  const int most = 4 * ranks;
  std::vector<std::string> runs;
  for (int first = 1; first <= most; ++first) {
    if (!is_legal(first)) continue;
    int last = first;
    while (last <= most && is_legal(last + 1)) ++last;
    if (last > most) {
      runs.push_back(first == 1 ? "any" : fmt::format("{} or more", first));
      return fmt::format("{}", fmt::join(runs, ", "));
    }
    runs.push_back(first == last ? std::to_string(first) : fmt::format("{} to {}", first, last));
    first = last;
  }
  return runs.empty() ? "none" : fmt::format("{}, …", fmt::join(runs, ", "));
}

std::vector<int> legal_chunks(std::string_view name, int ranks) {
  std::vector<int> legal;
  for (const int chunks : {1, 2, 3, 4}) {
    const ScheduleRequest request{
        .name = std::string(name), .ranks = ranks, .microbatches = 8 * ranks, .chunks = chunks};
    if (broken_rule(request).empty()) legal.push_back(chunks);
  }
  return legal;
}

int list(int ranks, bool json) {
  auto all = nlohmann::ordered_json::array();
  for (const std::string_view name : schedule_names()) {
    all.push_back({{"name", name},
                   {"summary", summary_of(name)},
                   {"ranks", ranks},
                   {"chunks", legal_chunks(name, ranks)},
                   {"microbatches", microbatch_rule(name, ranks)}});
  }
  if (json) {
    fmt::print("{}\n", all.dump(2));
    return kDone;
  }
  for (const auto& schedule : all) {
    const auto chunks = schedule["chunks"].get<std::vector<int>>();
    fmt::print("{}: {}\n    chunks: {}; micro-batches at {} ranks: {}\n", schedule["name"].get<std::string>(),
               schedule["summary"].get<std::string>(),
               chunks.size() == 4 ? "any" : fmt::format("{}", fmt::join(chunks, ", ")), ranks,
               schedule["microbatches"].get<std::string>());
  }
  return kDone;
}

struct ShowArguments {
  ScheduleOptions schedule;
  bool lowered = false;
  bool picture = false;
  bool json = false;
};

int show(const ShowArguments& arguments) {
  const SchedulePlan plan = plan_schedule(arguments.schedule);
  const Schedule& shown = arguments.lowered ? plan.lowered : plan.compute;
  if (arguments.json) {
    auto ranks = nlohmann::ordered_json::array();
    for (const auto& ops : shown.ranks) {
      ranks.push_back(nlohmann::ordered_json::array());
      for (const Op& op : ops) ranks.back().push_back(short_text(shown, op));
    }
    const nlohmann::ordered_json object{{"schedule", shown.name},   {"stages", shown.stages},
                                        {"copies", shown.copies},   {"microbatches", shown.microbatches},
                                        {"slots", shown.slots},     {"placement", shown.placement},
                                        {"ranks", std::move(ranks)}};
    fmt::print("{}\n", object.dump());
    return kDone;
  }
  fmt::print("{}", to_text(shown));
  if (arguments.picture) fmt::print("\n{}", draw(plan.compute, time_schedule(plan.compute, plan.costs).ops));
  return kDone;
}

int validate_file(const std::string& path, bool json) {
  const CsvSchedule file = read_csv_file(path);
  const Schedule lowered = file.schedule.slots > 0 ? file.schedule : lower_or_explain(file.schedule, 0);
  const Proof proof = validate(lowered);
  const bool accepted = proof.problems.empty();
  if (json) {
    const nlohmann::ordered_json object{{"file", path},
                                        {"accepted", accepted},
                                        {"ranks", lowered.ranks.size()},
                                        {"stages", lowered.stages},
                                        {"microbatches", lowered.microbatches},
                                        {"slots", lowered.slots},
                                        {"problems", proof.problems},
                                        {"hang_on_streams", proof.hang_on_streams},
                                        {"hang_in_line", proof.hang_in_line},
                                        {"sums_in_order", proof.sums_in_order},
                                        {"peak_activations_per_rank", proof.peak_activations},
                                        {"notes", file.notes}};
    fmt::print("{}\n", object.dump(2));
  } else {
    const auto verdict = [](const std::string& hang) { return hang.empty() ? "cannot hang" : "hangs: " + hang; };
    fmt::print("{}: {} ranks, {} stages, {} micro-batches, {} slot(s)\n", path, lowered.ranks.size(), lowered.stages,
               lowered.microbatches, lowered.slots);
    fmt::print("messages on streams of their own: {}\n", verdict(proof.hang_on_streams));
    fmt::print("in line, unbuffered sends:        {}\n", verdict(proof.hang_in_line));
    fmt::print("sums in micro-batch order:        {}\n", proof.sums_in_order ? "yes" : "no");
    fmt::print("peak activations of each rank:    {}\n", fmt::join(proof.peak_activations, ", "));
    for (const std::string& note : file.notes) fmt::print("note: {}\n", note);
    for (const std::string& problem : proof.problems) fmt::print("problem: {}\n", problem);
    fmt::print("{}\n", accepted ? "accepted" : "rejected");
  }
  return accepted ? kDone : static_cast<int>(ExitCode::config);
}

struct ExportArguments {
  ScheduleOptions schedule;
  bool lowered = false;
  std::string csv;
};

int export_csv(const ExportArguments& arguments) {
  const SchedulePlan plan = plan_schedule(arguments.schedule);
  write_text_file(arguments.csv, write_csv(arguments.lowered ? plan.lowered : plan.compute), raise_as<ConfigError>);
  fmt::print("{}: {} ranks, {} stages, {} micro-batches\n", arguments.csv, plan.compute.ranks.size(),
             plan.compute.stages, plan.compute.microbatches);
  return kDone;
}

void add_list(CLI::App& app, int& code) {
  struct Arguments {
    int ranks = 4;
    bool json = false;
  };
  const auto arguments = std::make_shared<Arguments>();
  auto* command = app.add_subcommand("list", "all schedules: name, stages a rank, legal micro-batches, what it is");
  command->add_option("--stages", arguments->ranks, "pipeline degree to tell the rules for")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "print one JSON array");
  command->callback([arguments, &code] { code = list(arguments->ranks, arguments->json); });
}

void add_show(CLI::App& app, int& code) {
  const auto arguments = std::make_shared<ShowArguments>();
  auto* command = app.add_subcommand("show", "the operations of each rank, in order");
  add_shape_options(*command, arguments->schedule);
  add_cost_options(*command, arguments->schedule);
  command->add_flag("--lowered", arguments->lowered, "with messages and the end of the step");
  command->add_flag("--picture", arguments->picture, "and when they run");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->callback([arguments, &code] { code = show(*arguments); });
}

void add_validate(CLI::App& app, int& code) {
  struct Arguments {
    std::string file;
    bool json = false;
  };
  const auto arguments = std::make_shared<Arguments>();
  auto* command = app.add_subcommand("validate", "prove that a schedule file is complete and cannot hang");
  command->add_option("file", arguments->file, "CSV, with or without messages")->required();
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->callback([arguments, &code] { code = validate_file(arguments->file, arguments->json); });
}

void add_export(CLI::App& app, int& code) {
  const auto arguments = std::make_shared<ExportArguments>();
  auto* command = app.add_subcommand("export", "write a schedule as PyTorch's pipeline CSV");
  add_shape_options(*command, arguments->schedule);
  add_cost_options(*command, arguments->schedule);
  command->add_option("--csv", arguments->csv, "file to write")->required();
  command->add_flag("--lowered", arguments->lowered, "with messages");
  command->callback([arguments, &code] { code = export_csv(*arguments); });
}

}  // namespace

void add_schedule_command(CLI::App& app, int& code) {
  auto* command = app.add_subcommand("schedule", "list, show, prove, export and compare pipeline schedules");
  command->require_subcommand(1);
  add_list(*command, code);
  add_show(*command, code);
  add_validate(*command, code);
  add_export(*command, code);
  add_schedule_comparison(*command, code);
}

}  // namespace orthant::launch
