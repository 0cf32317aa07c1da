// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/pipeline_plan.hpp>

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <xxhash.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/agree.hpp>
#include <orthant/launch/choose_schedule.hpp>
#include <orthant/pipeline/plan/lower.hpp>
#include <orthant/pipeline/plan/validate.hpp>
#include <orthant/pipeline/schedule/message.hpp>

namespace orthant::launch {
namespace {

pipeline::Schedule proved(pipeline::Schedule lowered) {
  const auto proof = pipeline::validate(lowered);
  if (!proof.problems.empty()) throw ConfigError(fmt::format("schedule {}: {}", lowered.name, proof.problems.front()));
  return lowered;
}

/// Layers of every stage; with two copies of the pipeline, of both.
std::vector<step::StageSpan> stages_of_copies(const std::vector<step::StageSpan>& one_copy, int copies) {
  std::vector<step::StageSpan> all;
  for (int copy = 0; copy < copies; ++copy) {
    for (auto span : one_copy) {
      span.stage.value += copy * static_cast<int>(one_copy.size());
      all.push_back(span);
    }
  }
  return all;
}

}  // namespace

PipelinePlan plan_pipeline(const RunConfig& run) {
  const auto chosen = choose_schedule(run);
  const auto& schedule = chosen.schedule;
  const bool is_lowered = schedule.slots > 0;  // a file's own messages
  const int slots = is_lowered ? schedule.slots : pipeline::slots_for(schedule);
  return {
      .training = proved(is_lowered ? schedule : pipeline::lower(schedule, slots)),
      .validation = proved(pipeline::lower(pipeline::forward_only(schedule), slots)),
      .stages = stages_of_copies(chosen.stages, schedule.copies),
      .residency = {.residency = run.residencies(),
                    .window = run.fsdp.reshard_after_forward ? run.fsdp.resident_stages : 0},
      .checkpoints = std::vector<step::Checkpoint>(static_cast<std::size_t>(run.mesh.pp), run.activation_checkpoint()),
      .reason = chosen.reason,
      .predicted_us = chosen.predicted_us};
}

std::vector<step::StageSpan> PipelinePlan::stages_of(int pp_rank) const {
  std::vector<step::StageSpan> result;
  for (const StageId stage : training.stages_of(pp_rank))
    result.push_back(stages[static_cast<std::size_t>(stage.value)]);
  return result;
}

int PipelinePlan::blocks_of(int pp_rank, const model::ModelConfig& model) const {
  int blocks = 0;
  for (const auto& span : stages_of(pp_rank))
    blocks += std::min(span.last.value, static_cast<int>(model.layers)) - std::max(span.first.value, 1) + 1;
  return blocks;
}

int PipelinePlan::mirror_of(int pp_rank) const {
  return training.copies == 1 ? -1 : static_cast<int>(training.ranks.size()) - 1 - pp_rank;
}

bool PipelinePlan::ends_apart() const {
  return training.rank_of(StageId{0}) != training.rank_of(StageId{training.depth() - 1});
}

mesh::PipelineTopology PipelinePlan::topology(bool tied_embeddings) const {
  std::set<mesh::PipelineEdge> edges;
  for (const auto& ops : training.ranks) {
    for (const pipeline::Op& op : ops) {
      if (!pipeline::is_send(op.kind)) continue;
      const auto channel = channel_of(training, op);
      edges.insert({channel.source, channel.destination, channel.gradient});
    }
  }
  mesh::PipelineTopology topology{.edges = {edges.begin(), edges.end()}, .ties = {}};
  const int ranks = static_cast<int>(training.ranks.size());
  if (training.copies > 1) {
    for (int rank = 0; 2 * rank < ranks; ++rank) topology.ties.push_back({rank, mirror_of(rank)});
  } else if (tied_embeddings && ends_apart()) {
    const int first = training.rank_of(StageId{0}), last = training.rank_of(StageId{training.depth() - 1});
    topology.ties.push_back({std::min(first, last), std::max(first, last)});
  }
  return topology;
}

std::uint64_t PipelinePlan::fingerprint() const {
  std::string text = to_text(training) + to_text(validation);
  for (const auto& span : stages) text += fmt::format("{} {} {};", span.stage.value, span.first.value, span.last.value);
  text +=
      fmt::format("slots {} residency {} {} window {}", training.slots, static_cast<int>(residency.residency.weights),
                  static_cast<int>(residency.residency.gradients), residency.window);
  for (const auto& [recompute, blocks] : checkpoints)
    text += fmt::format("again {} {} {} in {};", recompute.block, recompute.attention, recompute.mlp, blocks);
  return XXH64(text.data(), text.size(), 0);
}

void agree_on_plan(const PipelinePlan& plan, const mesh::DeviceMesh& mesh, std::chrono::milliseconds timeout) {
  comm::check_same(*mesh.control().collectives, "the pipeline plan", plan.fingerprint(), timeout);
}

}  // namespace orthant::launch
