// SPDX-License-Identifier: Apache-2.0
// The step of a run as data, before anything is made: which layers each stage holds, the schedule, lowered and proved.
// The same on all ranks, and compared between them before the first step.
#pragma once

#include <string>
#include <vector>

#include <orthant/core/step/llama_program.hpp>
#include <orthant/launch/run_config.hpp>
#include <orthant/mesh/device_mesh.hpp>
#include <orthant/pipeline/plan/expand.hpp>
#include <orthant/pipeline/schedule/schedule.hpp>

namespace orthant::launch {

struct PipelinePlan {
  pipeline::Schedule training;          ///< lowered
  pipeline::Schedule validation;        ///< lowered
  std::vector<step::StageSpan> stages;  ///< of every stage, copies included
  pipeline::ResidencyPolicy residency;
  std::vector<step::Checkpoint> checkpoints = {};  ///< of every pipeline rank
  std::string reason = {};                         ///< why this schedule, where that was the run's to choose
  double predicted_us = 0;  ///< step time of the compute operations by the cost profile; 0 without one

  std::vector<step::StageSpan> stages_of(int pp_rank) const;
  /// How many blocks the rank holds.
  int blocks_of(int pp_rank, const model::ModelConfig& model) const;
  /// The pipeline rank that holds the same weights (DualPipe's other copy); -1: none does.
  int mirror_of(int pp_rank) const;
  /// Whether tied embeddings have their two ends on different ranks.
  bool ends_apart() const;
  /// Channels, and the groups of ranks that hold the same weights.
  mesh::PipelineTopology topology(bool tied_embeddings) const;
  /// Everything that ranks must agree on, as a hash.
  std::uint64_t fingerprint() const;
};

/// Throws  ConfigError with the rule that the config breaks, or with what is wrong with a file's schedule.
PipelinePlan plan_pipeline(const RunConfig& run);

/// Compares the plan over all ranks. Collective over the control group.
/// Throws  InternalError naming the ranks that hold another plan.
void agree_on_plan(const PipelinePlan& plan, const mesh::DeviceMesh& mesh, std::chrono::milliseconds timeout);

}  // namespace orthant::launch
