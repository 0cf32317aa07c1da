// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/parallelize.hpp>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/model/init.hpp>
#include <orthant/dp/engine.hpp>
#include <orthant/fsdp/engine.hpp>
#include <orthant/pipeline/lower.hpp>
#include <orthant/pipeline/schedule.hpp>
#include <orthant/pipeline/validate.hpp>
#include <orthant/tp/sharded_factory.hpp>

namespace orthant::launch {
namespace {

using train::Residency;

/// Messages that a stage receives ahead, per channel; one is enough for every schedule there is.
constexpr int kSlots = 1;

/// Layer ids 0 (embedding), 1..L (blocks), L+1 (head): blocks are dealt out evenly, earlier stages get one more;
/// embedding and head go to the ends.
step::StageSpec stage_spec(const RunConfig& run, const mesh::DeviceMesh& mesh) {
  const int pp = run.mesh.pp, stage = mesh.coordinate().pp;
  const auto blocks = shard::balanced_range(run.model.layers, stage, pp);
  return {.model = run.model,
          .rows = {.seq = run.train.seq_len, .batch = run.train.micro_batch},
          .stage = StageId{stage},
          .first = LayerId{stage == 0 ? 0 : static_cast<int>(blocks.begin) + 1},
          .last = LayerId{static_cast<int>(stage == pp - 1 ? run.model.head_layer() : blocks.end)},
          .microbatches = static_cast<int>(run.microbatches()),
          .precision = run.train.precision,
          .counts_replicated = mesh.coordinate().tp == 0};
}

std::unique_ptr<DataParallel> shard_over_dp(const RunConfig& run, mesh::DeviceMesh& mesh, RankContext context,
                                            ParallelParts& parts) {
  const auto initial = [&parts, &run](const shard::FlatUnit& unit, std::int64_t begin, at::Tensor slice) {
    model::init_unit(parts.table, {.seed = run.train.seed, .std = run.model.init_std}, {unit, begin, std::move(slice)});
  };
  const auto behind_seams = [](auto engine) {
    auto& e = *engine;
    return std::make_unique<DataParallel>(DataParallel{std::move(engine), e, e, e});
  };
  if (run.fsdp.stage == 0) {
    return behind_seams(
        std::make_shared<dp::Engine>(parts.table, parts.store, context.scheduler, mesh.dp_reduce(), initial,
                                     dp::Options{.precision = run.train.precision, .bucket_bytes = run.bucket_bytes}));
  }
  return behind_seams(std::make_shared<fsdp::Engine>(
      parts.table, parts.store, context.scheduler, fsdp::Lanes{.gather = mesh.dp_gather(), .reduce = mesh.dp_reduce()},
      initial,
      fsdp::Options{.precision = run.train.precision,
                    .residency = run.layer_residency() ? Residency::layer : Residency::chunk}));
}

/// A schedule, proved, as this rank's layer tasks.
std::vector<pipeline::LayerTask> plan(const pipeline::Schedule& schedule, int rank, const train::StageLayout& layout,
                                      Residency residency) {
  const auto lowered = pipeline::lower(schedule, kSlots);
  const auto proof = pipeline::validate(lowered);
  if (!proof.problems.empty())
    throw InternalError(fmt::format("schedule {}: {}", schedule.name, proof.problems.front()));
  return pipeline::expand(lowered.ranks[static_cast<std::size_t>(rank)], layout, residency);
}

pipeline::StageLinks stage_links(const mesh::DeviceMesh& mesh) {
  const auto& lanes = mesh.pipeline();
  return {.receive_activation = lanes.activations_in,
          .send_gradient = lanes.gradients_out,
          .send_activation = lanes.activations_out,
          .receive_gradient = lanes.gradients_in};
}

/// The end of a step, operation by operation, as the schedule places it.
std::function<void(const pipeline::LayerTask&)> tail_of(ParallelParts& parts) {
  return [&parts](const pipeline::LayerTask& task) {
    using pipeline::OpKind;
    auto& submitted = parts.submitted;
    if (task.kind == OpKind::norm_units) parts.tail->norm_units();
    if (task.kind == OpKind::tie) parts.tail->tie();
    if (task.kind == OpKind::norm) submitted.handle = parts.tail->norm();
    if (task.kind == OpKind::step) parts.tail->update(submitted.step, submitted.lr);
  };
}

std::function<std::string(LayerId)> layer_names(const model::ModelConfig& config) {
  return [head = config.head_layer()](LayerId layer) {
    if (layer.value == 0) return std::string("embedding");
    if (layer.value == head) return std::string("head");
    return fmt::format("layers.{}", layer.value - 1);
  };
}

}  // namespace

std::unique_ptr<ParallelModel> parallelize(const RunConfig& run, mesh::DeviceMesh& mesh, RankContext context,
                                           step::BatchReader reader) {
  auto parts = std::make_unique<ParallelParts>();

  // tp: shapes shrink along the tensor axis.
  parts->factory =
      std::make_unique<tp::ShardedFactory>(run.model, model::Parameters{parts->table, parts->store}, mesh.tp(),
                                           tp::TpOptions{.sequence_parallel = run.sequence_parallel});
  // pp: this rank's layers only.
  parts->program = std::make_unique<step::LlamaProgram>(
      stage_spec(run, mesh), *parts->factory, model::Parameters{parts->table, parts->store}, std::move(reader));
  // dp or fsdp: outermost, over what is left.
  parts->data_parallel = shard_over_dp(run, mesh, context, *parts);

  // The step as data: a schedule, proved, then expanded to layer tasks.
  const auto residency = run.layer_residency() ? Residency::layer : Residency::chunk;
  const int pp = run.mesh.pp, m = static_cast<int>(run.microbatches()), rank = mesh.coordinate().pp;
  parts->training_plan = plan(pipeline::make_schedule(run.schedule, pp, m), rank, parts->program->layout(), residency);
  parts->validation_plan = plan(pipeline::forward_only(pp, m), rank, parts->program->layout(), residency);

  auto& data_parallel = *parts->data_parallel;
  parts->optimizer = optim::make_optimizer(run.optimizer);
  parts->tail = std::make_unique<step::StepTail>(
      context.scheduler,
      step::TailLanes{.compute = context.compute, .tp = mesh.tp(), .tie = mesh.tie(), .world = mesh.world()},
      parts->table, data_parallel.sync, data_parallel.store, *parts->optimizer, *parts->program,
      step::TailOptions{.grad_clip = run.train.grad_clip,
                        .counts_loss = mesh.coordinate().tp == 0,
                        .stop_requested = context.stop_requested});
  parts->executor = std::make_unique<pipeline::Executor>(pipeline::ExecutorParts{.scheduler = context.scheduler,
                                                                                 .compute = context.compute,
                                                                                 .program = *parts->program,
                                                                                 .lifecycle = data_parallel.lifecycle,
                                                                                 .grads = data_parallel.sync,
                                                                                 .links = stage_links(mesh),
                                                                                 .slots = kSlots,
                                                                                 .tail = tail_of(*parts),
                                                                                 .layer_name = layer_names(run.model)});
  return std::make_unique<ParallelModel>(run, mesh, context, std::move(parts));
}

}  // namespace orthant::launch
