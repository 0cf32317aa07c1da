// SPDX-License-Identifier: Apache-2.0
// ParallelModel: the model of this rank with everything that trains it, as parallelize() composed it. A step is
// submitted whole, and its result taken from a handle.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <orthant/core/step/llama_program.hpp>
#include <orthant/core/step/step_tail.hpp>
#include <orthant/launch/rank_context.hpp>
#include <orthant/launch/run_config.hpp>
#include <orthant/mesh/device_mesh.hpp>
#include <orthant/pipeline/execute/executor.hpp>
#include <orthant/launch/pipeline_plan.hpp>
#include <orthant/pipeline/plan/warm_up.hpp>

namespace orthant::launch {

/// One of the two data-parallel engines, behind the three seams that it implements.
struct DataParallel {
  std::shared_ptr<void> engine;
  train::ParamLifecycle& lifecycle;
  train::GradSync& sync;
  train::ShardStore& store;
};

/// post_validation = "auto": on after so many unclipped steps in a row.
inline constexpr std::int64_t kCalmSteps = 10;

/// What the tail of the step that is being submitted needs, and gives.
struct SubmittedStep {
  std::int64_t step = 0;
  double lr = 0;
  step::NormMode norm_mode = step::NormMode::barrier;
  std::optional<step::StepHandle> handle = {};
};

/// The parts, in the order of their construction; each refers to those before it.
struct ParallelParts {
  shard::ParameterTable table;
  model::ParameterStore store;
  std::unique_ptr<model::LayerFactory> factory;
  std::unique_ptr<step::LlamaProgram> program;
  std::unique_ptr<DataParallel> data_parallel;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<step::StepTail> tail;
  std::unique_ptr<pipeline::Executor> executor;
  pipeline::SplitTasks training_plan;
  std::vector<pipeline::LayerTask> validation_plan;
  SubmittedStep submitted;
};

class ParallelModel {
 public:
  /// copies_fit  whether every rank has room for post-validation's copies.
  ParallelModel(const RunConfig& run, mesh::DeviceMesh& mesh, RankContext context, std::unique_ptr<ParallelParts> parts,
                bool copies_fit)
      : run_(run), mesh_(mesh), context_(context), parts_(std::move(parts)), copies_fit_(copies_fit) {}

  /// Submits one training step (0-based) with this learning rate. Collective over all ranks. With post-validation the
  /// step before is settled on the way: its result is known when this returns, that of this step only later.
  step::StepHandle submit_step(std::int64_t step, double lr);
  /// Whether the last submitted step is still to be settled, by the next step or by settle().
  bool is_open() const { return parts_->tail->is_open(); }
  /// Settles the last submitted step: from here on its weights stand. Before anything but a further step.
  void settle() { parts_->tail->settle(); }
  /// Submits a forward-only pass over one global batch; `batch` is what the reader gets as its step.
  step::StepHandle submit_validation(std::int64_t batch);
  /// Waits for everything submitted.
  void drain() { context_.scheduler.drain(); }
  std::int64_t submitted_steps() const { return submitted_steps_; }

  /// How long this rank's layers take in training. Only after drain().
  std::map<LayerId, step::LayerCost> layer_costs() const { return parts_->program->costs().medians(); }
  int peak_activations() const { return parts_->executor->peak_activations(); }
  /// Of post-validation, on this rank; 0 before its first step.
  std::int64_t copy_bytes() const { return parts_->tail->copy_bytes(); }

  const RunConfig& run() const { return run_; }
  mesh::DeviceMesh& mesh() { return mesh_; }
  const RankContext& context() const { return context_; }
  const shard::ParameterTable& table() const { return parts_->table; }
  train::ShardStore& shards() { return parts_->data_parallel->store; }

 private:
  void begin(step::StepInput input, pipeline::PassKind kind);
  step::NormMode next_norm_mode();

  RunConfig run_;
  mesh::DeviceMesh& mesh_;
  RankContext context_;
  std::unique_ptr<ParallelParts> parts_;
  std::int64_t submitted_steps_ = 0;
  bool copies_fit_ = true;
  std::int64_t unclipped_steps_ = 0;  ///< in a row, up to the last one whose result is known
};

}  // namespace orthant::launch
