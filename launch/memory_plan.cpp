// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/memory_plan.hpp>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include <sys/resource.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/round_plan.hpp>
#include <orthant/dp/memory.hpp>
#include <orthant/fsdp/memory.hpp>
#include <orthant/launch/activation_walk.hpp>
#include <orthant/launch/byte_size.hpp>
#include <orthant/launch/parallelize.hpp>
#include <orthant/tp/sharded_factory.hpp>

namespace orthant::launch {
namespace {

using nlohmann::ordered_json;

/// A place in a group, for a factory that asks for nothing more.
class Seat final : public comm::Collectives {
 public:
  Seat(int rank, int size) : Collectives("planned", rank, size) {}
  comm::Work all_gather(comm::ConstSpan, comm::Span) override { return refuse(); }
  comm::Work reduce_scatter(comm::Span, comm::Span, comm::Into) override { return refuse(); }
  comm::Work all_reduce(comm::Span, comm::Reduction) override { return refuse(); }
  comm::Work all_to_all(comm::ConstSpan, comm::Span) override { return refuse(); }
  comm::Work broadcast(comm::Span, int) override { return refuse(); }

 private:
  static comm::Work refuse() { throw InternalError("memory plan: nobody is there to communicate with"); }
};

/// A rank's parameters and layers, declared and not made.
struct DeclaredRank {
  shard::ParameterTable table;
  std::vector<train::StageLayout> stages;
};

DeclaredRank declare(const RunConfig& run, const PipelinePlan& plan, mesh::Coordinate at) {
  DeclaredRank rank;
  model::ParameterStore store;
  const model::Parameters parameters{rank.table, store};
  Seat seat(at.tp, run.mesh.tp);
  tp::ShardedFactory factory(run.model, parameters, {&seat, {}}, {.sequence_parallel = run.sequence_parallel});
  auto spec = rank_spec(run, plan, at);
  spec.rows.seq = 2;  // the table of rotations need not be made for this
  const step::LlamaProgram program(spec, factory, parameters, {});
  rank.stages.assign(program.layouts().begin(), program.layouts().end());
  return rank;
}

std::int64_t rotary_bytes(const RunConfig& run) {
  const std::int64_t element = run.train.precision == DType::f64 ? 8 : 4;
  return run.train.seq_len * run.model.head_dim * element;  // half of it cosines, half sines
}

/// Masters and moments, held twice while a step may have to be taken back.
std::int64_t copy_bytes(const RunConfig& run, const shard::ParameterTable& table) {
  constexpr std::int64_t kCalmSteps = 10;
  const auto& wanted = run.pipeline.post_validation;
  const bool copies = wanted == "on" || (wanted == "auto" && run.mesh.pp > 1 && run.train.steps > kCalmSteps);
  if (!copies) return 0;
  const std::int64_t wide = run.train.precision == DType::f64 ? 8 : 4;
  const std::int64_t moment = run.moments == DType::bf16 ? 2 : wide;
  const int degree = run.fsdp.stage == 0 ? 1 : run.mesh_shape().dp_shard;
  std::int64_t bytes = 0;
  for (const auto& unit : table.units()) {
    if (unit.trains()) bytes += unit.shard_numel(degree) * (wide + 2 * moment);
  }
  return bytes;
}

/// What a group of ranks keeps for what arrives only to be added (RoundPlan), after a reduction of so many bytes.
std::int64_t scratch_bytes(std::int64_t reduced, int ranks) {
  if (ranks == 1) return 0;
  const std::int64_t block = (reduced + ranks - 1) / ranks;
  const std::int64_t piece = std::min<std::int64_t>(block, comm::RoundPlan::kPieceBytes);
  const std::int64_t in_flight = block > piece ? comm::RoundPlan::kInFlight : 1;
  return in_flight * ranks * piece;
}

std::int64_t collective_scratch(const RunConfig& run, const shard::ParameterTable& table,
                                const step::ActivationShape& shape) {
  const auto mesh = run.mesh_shape();
  const std::int64_t wide = run.train.precision == DType::f64 ? 8 : 4;
  std::int64_t largest = 0;
  for (const auto& unit : table.units()) largest = std::max(largest, unit.padded_numel(mesh.dp_shard) * wide);
  if (run.fsdp.stage == 0) largest = std::max(largest, run.bucket_bytes);
  const auto summed_rows = shape.rows * shape.hidden * static_cast<std::int64_t>(size_of(shape.precision));
  return scratch_bytes(largest, mesh.dp_shard) + scratch_bytes(largest / mesh.dp_shard, mesh.dp_replicate) +
         scratch_bytes(summed_rows, mesh.tp);
}

RankMemory plan_rank(const RunConfig& run, const PipelinePlan& plan, const DeclaredRank& rank, mesh::Coordinate at) {
  const auto shape = step::activation_shape(run.model, {.seq = run.train.seq_len,
                                                        .batch = run.train.micro_batch,
                                                        .precision = run.train.precision,
                                                        .tp = run.mesh.tp,
                                                        .tp_rank = at.tp,
                                                        .sequence_parallel = run.sequence_parallel});
  const auto walked = walk_activations({.schedule = plan.training,
                                        .pp_rank = at.pp,
                                        .stages = rank.stages,
                                        .head = LayerId{static_cast<int>(run.model.head_layer())},
                                        .shape = shape,
                                        .checkpoint = plan.checkpoints[static_cast<std::size_t>(at.pp)]});
  RankMemory memory;
  memory.state = run.fsdp.stage == 0 ? dp::state_bytes(rank.table, dp_options(run))
                                     : fsdp::state_bytes(rank.table, fsdp_options(run), run.mesh_shape().dp_shard);
  memory.state.optimizer += copy_bytes(run, rank.table);
  memory.state.buffers += rotary_bytes(run);
  memory.activations = walked.activations;
  memory.messages = walked.messages;
  memory.scratch = collective_scratch(run, rank.table, shape);
  memory.slack = memory.activations / 64;  // of what comes and goes, so much lies between blocks
  return memory;
}

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

/// Of this host, as it is now.
std::int64_t free_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string key, unit; file >> key;) {
    std::int64_t kib = 0;
    if (key == "MemAvailable:" && file >> kib) return kib << 10;
    std::getline(file, unit);
  }
  return std::int64_t{::sysconf(_SC_AVPHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
}

}  // namespace

MemoryPlan plan_memory(const RunConfig& run, const PipelinePlan& plan) {
  MemoryPlan memory{.tp = run.mesh.tp, .ranks = {}};
  for (int pp = 0; pp < run.mesh.pp; ++pp) {
    for (int tp = 0; tp < run.mesh.tp; ++tp) {
      const mesh::Coordinate at{.pp = pp, .tp = tp};
      memory.ranks.push_back(plan_rank(run, plan, declare(run, plan, at), at));
    }
  }
  return memory;
}

MemoryLimit find_memory_limit(const RunConfig& run, comm::Collectives& control, std::chrono::milliseconds timeout) {
  if (run.memory_limit > 0) return {.bytes = run.memory_limit, .is_given = true};
  const char* on_host = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  const std::int64_t ranks = on_host != nullptr ? std::atoi(on_host) : run.mesh.world();
  auto share = static_cast<double>(free_bytes() / ranks);
  control.all_reduce({&share, 1, DType::f64}, comm::Reduction::min).wait(timeout);
  return {.bytes = static_cast<std::int64_t>(share), .is_given = false};
}

void choose_checkpoints(const RunConfig& run, const MemoryLimit& limit, PipelinePlan& plan) {
  if (run.train.checkpoint_activations != "auto") return;
  for (int pp = 0; pp < run.mesh.pp; ++pp) {
    std::vector<DeclaredRank> declared;
    for (int tp = 0; tp < run.mesh.tp; ++tp) declared.push_back(declare(run, plan, {.pp = pp, .tp = tp}));
    auto& blocks = plan.checkpoints[static_cast<std::size_t>(pp)].blocks;
    const auto fits = [&] {
      for (int tp = 0; tp < run.mesh.tp; ++tp) {
        const auto memory = plan_rank(run, plan, declared[static_cast<std::size_t>(tp)], {.pp = pp, .tp = tp});
        if (memory.total() > limit.bytes) return false;
      }
      return true;
    };
    const int all = plan.blocks_of(pp, run.model);
    for (blocks = 0; blocks < all && !fits(); ++blocks) {
    }
  }
}

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
  std::vector<std::int64_t> all(2 * static_cast<std::size_t>(control.size()));
  const std::int64_t numbers[] = {mine.in_tensors, mine.resident};
  control.all_gather({numbers, 2, DType::i64}, {all.data(), static_cast<std::int64_t>(all.size()), DType::i64})
      .wait(timeout);
  std::vector<MeasuredMemory> measured;
  for (std::size_t i = 0; i < all.size(); i += 2) measured.push_back({all[i], all[i + 1]});
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
                    {"resident", found.resident}});
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
