// SPDX-License-Identifier: Apache-2.0
// The memory plan: what every rank of a run will hold at its peak, line by line, before anything large is allocated. A
// pure function of config and pipeline plan, so each rank knows the plans of all. It decides how many blocks are
// checkpointed where that is the run's to choose. memory_report.hpp tells people of it.
#pragma once

#include <chrono>
#include <vector>

#include <orthant/core/comm/collectives.hpp>
#include <orthant/core/memory/state_bytes.hpp>
#include <orthant/launch/pipeline_plan.hpp>
#include <orthant/launch/run_config.hpp>

namespace orthant::launch {

/// Of one rank, in bytes.
struct RankMemory {
  memory::StateBytes state;      ///< copies of post-validation are part of the optimizer
  std::int64_t snapshot = 0;     ///< of masters and moments, from which a checkpoint is written
  std::int64_t activations = 0;  ///< at their peak
  std::int64_t messages = 0;     ///< received ahead or under way
  std::int64_t scratch = 0;      ///< of collectives; not in tensors
  std::int64_t slack = 0;        ///< what the allocator cannot use; not in tensors

  /// What the counting allocator is to find.
  std::int64_t in_tensors() const { return state.total() + snapshot + activations + messages; }
  std::int64_t total() const { return in_tensors() + scratch + slack; }
};

/// Ranks that differ in their data-parallel coordinate alone hold the same.
struct MemoryPlan {
  int tp = 1;
  std::vector<RankMemory> ranks;  ///< of pipeline rank p and tensor-parallel rank t at p tp + t

  const RankMemory& at(int pp_rank, int tp_rank) const {
    return ranks[static_cast<std::size_t>(pp_rank * tp + tp_rank)];
  }
};

MemoryPlan plan_memory(const RunConfig& run, const PipelinePlan& plan);

/// What a rank may hold.
struct MemoryLimit {
  std::int64_t bytes = 0;
  bool is_given = false;  ///< memory.limit; else what its host has free, shared by the ranks there
};

/// The smallest of all ranks. Collective over `control`.
MemoryLimit find_memory_limit(const RunConfig& run, comm::Collectives& control, std::chrono::milliseconds timeout);

/// checkpoint_activations = "auto": for each pipeline rank the fewest blocks with which it fits; all, if none does.
/// Without "auto" the plan stays as it is.
void choose_checkpoints(const RunConfig& run, const MemoryLimit& limit, PipelinePlan& plan);

}  // namespace orthant::launch
