// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/parallelize.hpp>

#include <cstdlib>

#include <unistd.h>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/model/init.hpp>
#include <orthant/dp/engine.hpp>
#include <orthant/fsdp/engine.hpp>
#include <orthant/launch/fault_injector.hpp>
#include <orthant/pipeline/plan/warm_up.hpp>
#include <orthant/tp/sharded_factory.hpp>

namespace orthant::launch {

step::RankSpec rank_spec(const RunConfig& run, const PipelinePlan& plan, const mesh::Coordinate& at) {
  const int pp = at.pp, mirror = plan.mirror_of(pp);
  return {.model = run.model,
          .rows = {.seq = run.train.seq_len, .batch = run.train.micro_batch},
          .stages = plan.stages_of(pp),
          .microbatches = static_cast<int>(run.microbatches()),
          .precision = run.train.precision,
          .tied_apart = run.model.tie_embeddings && plan.ends_apart(),
          .mirrored = mirror >= 0,
          .counts_mirrored = mirror < 0 || pp < mirror,
          .seed = run.train.seed,
          .first_sample = [&run, dp = run.mesh_shape().dp_of(at)](
                              MicrobatchId microbatch) { return run.first_sample(dp, microbatch); },
          .policies = [&run](shard::UnitKind kind, std::int64_t block) { return run.unit_policy(kind, block); },
          .checkpoint = plan.checkpoints[static_cast<std::size_t>(pp)]};
}

dp::Options dp_options(const RunConfig& run) {
  return {.precision = run.train.precision, .moments = run.moments, .bucket_bytes = run.bucket_bytes};
}

fsdp::Options fsdp_options(const RunConfig& run) {
  return {.precision = run.train.precision,
          .residency = run.residencies(),
          .keeps_weights = run.fsdp.stage < 3,
          .wire = run.fsdp.reduce_dtype,
          .moments = run.moments};
}

tp::TpOptions tp_options(const RunConfig& run) {
  return {.sequence_parallel = run.sequence_parallel,
          .keep_gathered = run.keep_gathered,
          .gather_pieces = run.gather_pieces,
          .element_bytes = static_cast<std::int64_t>(size_of(run.train.precision))};
}

namespace {

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
    return behind_seams(std::make_shared<dp::Engine>(parts.table, parts.store, context.scheduler, mesh.dp_reduce(),
                                                     initial, dp_options(run)));
  }
  return behind_seams(
      std::make_shared<fsdp::Engine>(parts.table, parts.store, context.scheduler,
                                     fsdp::Lanes{.gather = mesh.dp_gather(),
                                                 .reduce = run.fsdp.shared_stream ? mesh.dp_gather() : mesh.dp_reduce(),
                                                 .replica = mesh.dp_replica(),
                                                 .compute = context.compute},
                                     initial, fsdp_options(run)));
}

/// This rank's part of a lowered schedule as layer tasks.
std::vector<pipeline::LayerTask> layer_tasks(const pipeline::Schedule& lowered, const PipelinePlan& plan, int pp_rank,
                                             std::span<const train::StageLayout> stages) {
  auto tasks = pipeline::expand(lowered.ranks[static_cast<std::size_t>(pp_rank)], stages, plan.residency);
  const auto problems = pipeline::check_layer_tasks(tasks, stages, plan.residency);
  if (!problems.empty()) throw InternalError(fmt::format("plan of pipeline rank {}: {}", pp_rank, problems.front()));
  return tasks;
}

/// The end of a step, operation by operation, as the schedule places it.
std::function<void(const pipeline::LayerTask&)> tail_of(ParallelParts& parts) {
  return [&parts](const pipeline::LayerTask& task) {
    using pipeline::OpKind;
    auto& submitted = parts.submitted;
    if (task.kind == OpKind::norm_units) parts.tail->norm_units(submitted.step);
    if (task.kind == OpKind::tie) parts.tail->tie();
    if (task.kind == OpKind::norm) submitted.handle = parts.tail->norm(submitted.norm_mode);
    if (task.kind == OpKind::step) parts.tail->update(submitted.lr);
  };
}

std::function<std::string(LayerId)> layer_names(const model::ModelConfig& config) {
  return [head = config.head_layer()](LayerId layer) {
    if (layer.value == 0) return std::string("embedding");
    if (layer.value == head) return std::string("head");
    return fmt::format("layers.{}", layer.value - 1);
  };
}

/// Whether the copies of masters and moments that post-validation keeps fit into half of what every host has left.
bool copies_fit(train::ShardStore& store, const mesh::DeviceMesh& mesh, std::chrono::milliseconds timeout) {
  std::int64_t bytes = 0;
  for (const auto& shard : store.shards()) {
    if (shard.trains) bytes += static_cast<std::int64_t>(shard.master.nbytes() + 2 * shard.exp_avg.nbytes());
  }
  const char* on_host = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  const std::int64_t ranks = on_host != nullptr ? std::atoi(on_host) : mesh.shape().size();
  const std::int64_t left = std::int64_t{::sysconf(_SC_AVPHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  double fits = bytes * ranks <= left / 2 ? 1 : 0;
  mesh.control().collectives->all_reduce({&fits, 1, DType::f64}, comm::Reduction::min).wait(timeout);
  return fits > 0;
}

}  // namespace

std::unique_ptr<ParallelModel> parallelize(const RunConfig& run, const PipelinePlan& plan, mesh::DeviceMesh& mesh,
                                           RankContext context, step::BatchReader reader) {
  auto parts = std::make_unique<ParallelParts>();

  // tp: shapes shrink along the tensor axis.
  parts->factory = std::make_unique<tp::ShardedFactory>(run.model, model::Parameters{parts->table, parts->store},
                                                        mesh.tp(), tp_options(run));
  // pp: this rank's layers only.
  parts->program =
      std::make_unique<step::LlamaProgram>(rank_spec(run, plan, mesh.coordinate()), *parts->factory,
                                           model::Parameters{parts->table, parts->store}, std::move(reader));
  // dp or fsdp: outermost, over what is left.
  parts->data_parallel = shard_over_dp(run, mesh, context, *parts);

  // The step as data: this rank's part of the plan, expanded to layer tasks.
  const int pp = mesh.coordinate().pp;
  const auto warm_up = pipeline::warm_up_ops(plan.training)[static_cast<std::size_t>(pp)];
  parts->training_plan =
      pipeline::split_warm_up(layer_tasks(plan.training, plan, pp, parts->program->layouts()), warm_up);
  parts->validation_plan = layer_tasks(plan.validation, plan, pp, parts->program->layouts());

  auto& data_parallel = *parts->data_parallel;
  parts->optimizer = optim::make_optimizer(run.optimizer);
  parts->tail = std::make_unique<step::StepTail>(
      context.scheduler,
      step::TailLanes{.compute = context.compute,
                      .tp = mesh.tp(),
                      .tp_share = mesh.tp_share(),
                      .tie = mesh.tie(),
                      .stage = mesh.stage(),
                      .pp = mesh.pp(),
                      .prefix_in = mesh.prefix_in(),
                      .prefix_out = mesh.prefix_out()},
      parts->table, data_parallel.sync, data_parallel.store, *parts->optimizer, *parts->program,
      step::TailOptions{.grad_clip = run.train.grad_clip,
                        .counts_loss = mesh.coordinate().tp == 0,
                        .votes = context.votes,
                        .poison = [fault = run.fault, rank = mesh.rank()](std::int64_t step) {
                          return poison(fault, rank, step + 1);
                        }});
  parts->executor = std::make_unique<pipeline::Executor>(pipeline::ExecutorParts{
      .scheduler = context.scheduler,
      .compute = context.compute,
      .program = *parts->program,
      .lifecycle = data_parallel.lifecycle,
      .grads = data_parallel.sync,
      .routes = pipeline::routes_of(plan.training, pp,
                                    [&](const pipeline::ChannelKey& key) {
                                      return mesh.pipeline({key.source, key.destination, key.gradient});
                                    }),
      .slots = plan.training.slots,
      .tail = tail_of(*parts),
      .layer_name = layer_names(run.model)});
  const bool fits = copies_fit(data_parallel.store, mesh, context.timeout);
  return std::make_unique<ParallelModel>(run, mesh, context, std::move(parts), fits);
}

}  // namespace orthant::launch
