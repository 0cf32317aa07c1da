// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/choose_schedule.hpp>

#include <algorithm>
#include <numeric>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <orthant/core/base/error.hpp>
#include <orthant/launch/cost_profile.hpp>
#include <orthant/launch/stage_split.hpp>
#include <orthant/pipeline/cost/timing.hpp>
#include <orthant/pipeline/generate/catalog.hpp>
#include <orthant/pipeline/schedule/csv.hpp>

namespace orthant::launch {
namespace {

constexpr std::string_view kFile = "file:";

std::optional<CostProfile> profile_of(const RunConfig& run) {
  if (run.pipeline.profile.empty()) return std::nullopt;
  return read_profile(run.pipeline.profile, run.model.layers);
}

void check_sum(const RunConfig& run, const std::vector<int>& blocks) {
  const auto sum = std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0});
  if (sum != run.model.layers) {
    throw ConfigError(
        fmt::format("pipeline.layers_per_stage = [{}] sums to {}; the model has {} layers (embedding and head "
                    "are not counted)",
                    fmt::join(blocks, ", "), sum, run.model.layers));
  }
  for (std::size_t s = 1; s + 1 < blocks.size(); ++s) {
    if (blocks[s] == 0) {
      throw ConfigError(
          fmt::format("pipeline.layers_per_stage: stage {} has no layer; only the first and the last, which "
                      "have the embedding and the head, may have 0",
                      s));
    }
  }
}

/// Layers of the stages of one copy.
std::vector<step::StageSpan> split(const RunConfig& run, const std::optional<CostProfile>& profile, int stages) {
  const auto& wanted = run.pipeline.layers_per_stage;
  if (!wanted.empty()) {
    if (static_cast<int>(wanted.size()) != stages) {
      throw ConfigError(fmt::format("pipeline.layers_per_stage has {} numbers; schedule {} has {} stages on {} ranks",
                                    wanted.size(), run.pipeline.schedule, stages, run.mesh.pp));
    }
    check_sum(run, wanted);
    return spans_of(wanted);
  }
  if (run.model.layers < stages) {
    const int chunks = std::max(stages / run.mesh.pp, 1);
    throw ConfigError(fmt::format("{} layers cannot fill {} pipeline stages; use pp <= {}", run.model.layers, stages,
                                  run.model.layers / chunks));
  }
  if (!profile) return spans_of(split_blocks(estimated_layer_costs(run.model, run.train.seq_len), stages));
  std::vector<double> costs;
  for (const auto& layer : profile->layers) costs.push_back(layer.forward_us + layer.input_us + layer.weight_us);
  return spans_of(split_blocks(costs, stages));
}

/// Stages of one copy that the schedule would have.
int depth_of(std::string_view name, int ranks, int chunks) {
  return name == "dualpipe" ? ranks : ranks * (chunks > 0 ? chunks : pipeline::default_chunks(name));
}

ChosenSchedule generated(const RunConfig& run, const std::optional<CostProfile>& profile, const std::string& name,
                         int chunks) {
  pipeline::ScheduleRequest request{
      .name = name,
      .ranks = run.mesh.pp,
      .microbatches = static_cast<int>(run.microbatches()),
      .chunks = chunks,
      // of a chunk, not of all of a rank's
      .memory_limit = run.pipeline.memory_limit * (chunks > 0 ? chunks : pipeline::default_chunks(name))};
  if (const auto fault = pipeline::broken_rule(request); !fault.empty()) throw ConfigError(fault);
  ChosenSchedule chosen;
  chosen.stages = split(run, profile, depth_of(name, run.mesh.pp, chunks));
  if (profile) request.costs = stage_costs(*profile, chosen.stages);
  chosen.schedule = pipeline::make_schedule(request);
  if (profile) chosen.predicted_us = pipeline::time_schedule(chosen.schedule, request.costs).makespan;
  return chosen;
}

ChosenSchedule from_file(const RunConfig& run, const std::optional<CostProfile>& profile) {
  auto file = pipeline::read_csv_file(run.pipeline.schedule.substr(kFile.size()));
  const auto& schedule = file.schedule;
  if (static_cast<int>(schedule.ranks.size()) != run.mesh.pp || schedule.microbatches != run.microbatches()) {
    throw ConfigError(fmt::format("{} is for {} ranks and {} micro-batches; the run has pp = {} and {} micro-batches",
                                  schedule.name, schedule.ranks.size(), schedule.microbatches, run.mesh.pp,
                                  run.microbatches()));
  }
  ChosenSchedule chosen{.schedule = schedule,
                        .stages = split(run, profile, schedule.depth()),
                        .reason = fmt::format("{}", fmt::join(file.notes, "\n"))};
  return chosen;
}

/// Most activations of any rank, in micro-batches: a rank's chunks together are one.
double peak_microbatches(const pipeline::Schedule& schedule) {
  const auto peaks = pipeline::time_schedule(schedule, {}).peak;
  return std::ranges::max(peaks) * static_cast<double>(schedule.ranks.size()) / schedule.stages;
}

/// Every schedule with the chunks that it may have, timed with the profile.
ChosenSchedule least_predicted(const RunConfig& run, const CostProfile& profile) {
  const double limit = run.pipeline.memory_limit > 0 ? run.pipeline.memory_limit : run.mesh.pp;
  std::optional<ChosenSchedule> best;
  std::string table = fmt::format(
      "schedule = \"auto\": predicted step time with {}; at most {:g} micro-batches of activations a rank\n",
      run.pipeline.profile, limit);
  for (const std::string_view name : pipeline::schedule_names()) {
    for (const int chunks : pipeline::possible_chunks(name)) {
      const auto label = fmt::format("{}{}", name, chunks > 1 ? fmt::format(" x{}", chunks) : "");
      try {
        auto candidate = generated(run, profile, std::string(name), chunks);
        const double peak = peak_microbatches(candidate.schedule);
        const bool fits = peak <= limit + 1e-9;
        table += fmt::format("  {:<20} {:>10.3f} ms  {:>6.2f} micro-batches{}\n", label, candidate.predicted_us / 1e3,
                             peak, fits ? "" : "  over the limit");
        if (fits && (!best || candidate.predicted_us < best->predicted_us)) best = std::move(candidate);
      } catch (const ConfigError& error) {
        table += fmt::format("  {:<20} not possible: {}\n", label, error.what());
      }
    }
  }
  if (!best) throw ConfigError(table + "no schedule fits; raise pipeline.memory_limit");
  best->reason = table + fmt::format("taken: {}", best->schedule.name);
  return std::move(*best);
}

}  // namespace

ChosenSchedule choose_schedule(const RunConfig& run) {
  const auto profile = profile_of(run);
  if (run.pipeline.schedule.starts_with(kFile)) return from_file(run, profile);
  if (run.pipeline.schedule != "auto") return generated(run, profile, run.pipeline.schedule, run.pipeline.chunks);
  if (!profile)
    throw ConfigError("schedule = \"auto\" compares measured costs; set pipeline.profile to the profile.json of a run");
  return least_predicted(run, *profile);
}

}  // namespace orthant::launch
