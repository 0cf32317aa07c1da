// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/memory_plan.hpp>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include <unistd.h>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/round_plan.hpp>
#include <orthant/core/model/kernels/product.hpp>
#include <orthant/core/model/tensor_span.hpp>
#include <orthant/dp/memory.hpp>
#include <orthant/fsdp/memory.hpp>
#include <orthant/launch/activation_walk.hpp>
#include <orthant/launch/parallelize.hpp>
#include <orthant/tp/sharded_factory.hpp>

namespace orthant::launch {
namespace {

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
  tp::ShardedFactory factory(run.model, parameters, {&seat, {}}, tp_options(run));
  auto spec = rank_spec(run, plan, at);
  spec.rows.seq = 2;  // the table of rotations need not be made for this
  const step::LlamaProgram program(spec, factory, parameters, {});
  rank.stages.assign(program.layouts().begin(), program.layouts().end());
  return rank;
}

std::int64_t rotary_bytes(const RunConfig& run) {
  return run.train.seq_len * run.model.head_dim *
         memory::ElementBytes(run.train.precision).wide;  // half of it cosines, half sines
}

/// Masters and moments of the units that train.
std::int64_t optimizer_bytes(const RunConfig& run, const shard::ParameterTable& table) {
  const memory::ElementBytes element(run.train.precision, run.moments);
  const int degree = run.fsdp.stage == 0 ? 1 : run.mesh_shape().dp_shard;
  std::int64_t bytes = 0;
  for (const auto& unit : table.units()) {
    if (unit.trains()) bytes += unit.shard_numel(degree) * (element.wide + 2 * element.moment);
  }
  return bytes;
}

/// Held twice while a step may have to be taken back.
std::int64_t copy_bytes(const RunConfig& run, const shard::ParameterTable& table) {
  const auto& wanted = run.pipeline.post_validation;
  const bool copies = wanted == "on" || (wanted == "auto" && run.mesh.pp > 1 && run.train.steps > kCalmSteps);
  return copies ? optimizer_bytes(run, table) : 0;
}

/// Held once more while a checkpoint is written in the background. (What only other ranks write is in it, too.)
std::int64_t snapshot_bytes(const RunConfig& run, const shard::ParameterTable& table) {
  const auto& c = run.checkpoint;
  return c.background && (c.interval > 0 || c.automatic) ? optimizer_bytes(run, table) : 0;
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
  const std::int64_t wide = memory::ElementBytes(run.train.precision).wide;
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
                                                        .sequence_parallel = run.sequence_parallel,
                                                        .keep_gathered = run.keep_gathered});
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
  memory.snapshot = snapshot_bytes(run, rank.table);
  memory.activations = walked.activations;
  memory.messages = walked.messages;
  memory.scratch = collective_scratch(run, rank.table, shape);
  memory.slack = memory.activations / 64;  // of what comes and goes, so much lies between blocks
  if (model::kernels::widens(model::scalar_type(run.train.precision)))
    memory.slack += model::kernels::widening_scratch_bytes();
  return memory;
}

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
  const bool is_given = run.memory_limit > 0;
  const char* on_host = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  const std::int64_t ranks = on_host != nullptr ? std::atoi(on_host) : run.mesh.world();
  auto bytes = static_cast<double>(is_given ? run.memory_limit : free_bytes() / ranks);
  control.all_reduce({&bytes, 1, DType::f64}, comm::Reduction::min).wait(timeout);
  return {.bytes = static_cast<std::int64_t>(bytes), .is_given = is_given};
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

}  // namespace orthant::launch
