// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/memory_report.hpp>

#include <algorithm>

#include <sys/resource.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/error.hpp>
#include <orthant/launch/byte_size.hpp>

namespace orthant::launch {
namespace {

using nlohmann::ordered_json;

struct Line {
  const char* name;
  std::int64_t (*of)(const RankMemory&);
  const char* remedy;
};
constexpr Line kLines[] = {
    {"weights", [](const RankMemory& m) { return m.state.weights; },
     "fsdp.stage = 3 with a larger dp, or a larger tp or pp"},
    {"gradients", [](const RankMemory& m) { return m.state.gradients; },
     "fsdp.stage = 2 or 3 with a larger dp, or a larger tp or pp"},
    {"optimizer", [](const RankMemory& m) { return m.state.optimizer; },
     "fsdp.stage >= 1 with a larger dp, optimizer.moments = \"bf16\", or pipeline.post_validation = \"off\""},
    {"buffers", [](const RankMemory& m) { return m.state.buffers; },
     "fsdp.residency = \"layer\" with fsdp.stage = 3, or a larger tp or pp"},
    {"snapshot", [](const RankMemory& m) { return m.snapshot; }, "checkpoint.background = false"},
    {"activations", [](const RankMemory& m) { return m.activations; },
     "train.checkpoint_activations = \"full\" or \"auto\", a smaller train.micro_batch, or a larger tp"},
    {"communication", [](const RankMemory& m) { return m.messages + m.scratch; },
     "a smaller train.micro_batch, or a smaller dp.bucket_mib"},
    {"allocator slack", [](const RankMemory& m) { return m.slack; }, "a smaller train.micro_batch"}};

ordered_json lines_json(const RankMemory& memory) {
  ordered_json json;
  for (const Line& line : kLines) {
    std::string key = line.name;
    std::ranges::replace(key, ' ', '_');
    json[key] = line.of(memory);
  }
  json["total"] = memory.total();
  json["in_tensors"] = memory.in_tensors();
  return json;
}

const RankMemory& largest(const MemoryPlan& memory, int pp_rank) {
  const auto first = memory.ranks.begin() + pp_rank * memory.tp;
  return *std::max_element(first, first + memory.tp,
                           [](const RankMemory& a, const RankMemory& b) { return a.total() < b.total(); });
}

int pipeline_ranks(const MemoryPlan& memory) { return static_cast<int>(memory.ranks.size()) / memory.tp; }

}  // namespace

std::string describe_checkpoints(const RunConfig& run, const PipelinePlan& plan) {
  if (run.train.checkpoint_activations != "auto") return {};
  std::string text = "activation checkpointing (auto):";
  for (int pp = 0; pp < run.mesh.pp; ++pp) {
    text += fmt::format("{} pp{} {} of {} blocks", pp == 0 ? "" : ",", pp,
                        plan.checkpoints[static_cast<std::size_t>(pp)].blocks, plan.blocks_of(pp, run.model));
  }
  return text;
}

std::string memory_table(const MemoryPlan& memory, const MemoryLimit& limit) {
  const auto row = [&](const char* name, auto of) {
    std::string text = fmt::format("{:<16}", name);
    for (int pp = 0; pp < pipeline_ranks(memory); ++pp) text += fmt::format("{:>12}", of(pp));
    return text + "\n";
  };
  std::string text = row("memory a rank", [](int pp) { return fmt::format("pp{}", pp); });
  for (const Line& line : kLines)
    text += row(line.name, [&](int pp) { return format_bytes(line.of(largest(memory, pp))); });
  text += row("total", [&](int pp) { return format_bytes(largest(memory, pp).total()); });
  return text + fmt::format("{} of {}", limit.is_given ? "memory.limit" : "each rank's share of what its host has free",
                            format_bytes(limit.bytes));
}

void require_fit(const MemoryPlan& memory, const MemoryLimit& limit) {
  for (int pp = 0; pp < pipeline_ranks(memory); ++pp) {
    const RankMemory& rank = largest(memory, pp);
    if (rank.total() <= limit.bytes) continue;
    const Line& most = *std::ranges::max_element(kLines, {}, [&](const Line& line) { return line.of(rank); });
    throw ConfigError(
        fmt::format("the run does not fit into memory\n{}\npp{} wants {}, {} is {}; most of it is {}, {}: use {}",
                    memory_table(memory, limit), pp, format_bytes(rank.total()),
                    limit.is_given ? "memory.limit" : "its share of the host's free memory", format_bytes(limit.bytes),
                    most.name, format_bytes(most.of(rank)), most.remedy));
  }
}

std::int64_t peak_resident_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

std::vector<MeasuredMemory> gather_measured(const MeasuredMemory& mine, comm::Collectives& control,
                                            std::chrono::milliseconds timeout) {
  std::vector<MeasuredMemory> measured(static_cast<std::size_t>(control.size()));
  const auto bytes = static_cast<std::int64_t>(sizeof(MeasuredMemory));
  control.all_gather({&mine, bytes, DType::u8}, {measured.data(), bytes * control.size(), DType::u8}).wait(timeout);
  return measured;
}

ordered_json memory_json(const RunConfig& run, const PipelinePlan& plan, const MemoryPlan& memory,
                         const MemoryLimit& limit) {
  ordered_json json{{"limit", limit.bytes}, {"limit_is_given", limit.is_given}};
  json["checkpoint_activations"] = run.train.checkpoint_activations;
  for (int pp = 0; pp < run.mesh.pp; ++pp) {
    const auto& checkpoint = plan.checkpoints[static_cast<std::size_t>(pp)];
    const bool some = checkpoint.recompute != model::Recompute{};
    json["checkpointed_blocks"].push_back(some ? std::min(checkpoint.blocks, plan.blocks_of(pp, run.model)) : 0);
  }
  const auto mesh = run.mesh_shape();
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const auto at = mesh.coordinate_of(rank);
    ordered_json line{{"rank", rank}, {"pp", at.pp}, {"dp", mesh.dp_of(at)}, {"tp", at.tp}};
    line.update(lines_json(memory.at(at.pp, at.tp)));
    json["ranks"].push_back(std::move(line));
  }
  return json;
}

ordered_json measured_json(const RunConfig& run, const MemoryPlan& memory,
                           const std::vector<MeasuredMemory>& measured) {
  ordered_json json = ordered_json::array();
  const auto mesh = run.mesh_shape();
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const auto at = mesh.coordinate_of(rank);
    const auto& found = measured[static_cast<std::size_t>(rank)];
    json.push_back({{"rank", rank},
                    {"predicted", memory.at(at.pp, at.tp).in_tensors()},
                    {"measured", found.in_tensors},
                    {"resident", found.resident},
                    {"resident_empty", found.resident_empty}});
  }
  return json;
}

std::string describe_measured(const RunConfig& run, const MemoryPlan& memory,
                              const std::vector<MeasuredMemory>& measured) {
  const auto mesh = run.mesh_shape();
  const int per_stage = mesh.size() / mesh.pp;
  std::string text = "peak of tensors:";
  for (int pp = 0; pp < mesh.pp; ++pp) {
    const auto first = measured.begin() + pp * per_stage;
    const auto most = std::ranges::max_element(first, first + per_stage, {}, &MeasuredMemory::in_tensors);
    const auto at = mesh.coordinate_of(static_cast<int>(most - measured.begin()));
    text += fmt::format("{} pp{} predicted {}, measured {} (process {})", pp == 0 ? "" : ";", pp,
                        format_bytes(memory.at(at.pp, at.tp).in_tensors()), format_bytes(most->in_tensors),
                        format_bytes(most->resident));
  }
  return text;
}

}  // namespace orthant::launch
