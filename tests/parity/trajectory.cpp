// SPDX-License-Identifier: Apache-2.0
#include <orthant/tests/parity/trajectory.hpp>

#include <memory>
#include <mutex>
#include <optional>

#include <ATen/ops/mul.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/sub.h>

#include <orthant/core/stream/cpu_scheduler.hpp>
#include <orthant/launch/checkpointer.hpp>
#include <orthant/launch/parallelize.hpp>
#include <orthant/launch/replica_check.hpp>
#include <orthant/launch/resume.hpp>
#include <orthant/launch/weights.hpp>
#include <orthant/tests/harness/run_ranks.hpp>

namespace orthant::tests {
namespace {

using namespace launch;

std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

step::BatchReader reader_of(const RunConfig& run, int dp_rank, const Treatment& treatment) {
  return [&run, &treatment, dp_rank](const step::StepInput& input, MicrobatchId microbatch, std::int64_t* inputs,
                                     std::int64_t* targets) {
    const auto batch = run.train.micro_batch;
    const auto first = input.step * run.train.global_batch + run.first_sample(dp_rank, microbatch);
    for (std::int64_t s = 0; s < run.train.seq_len; ++s) {
      for (std::int64_t b = 0; b < batch; ++b) {
        inputs[s * batch + b] = synthetic_token(first + b, s, run.model.vocab);
        const bool ignored = treatment.ignored && treatment.ignored(first + b, s);
        targets[s * batch + b] = ignored ? -1 : synthetic_token(first + b, s + 1, run.model.vocab);
      }
    }
  };
}

Tensors gather(ParallelModel& model, ShardTensor which, double scale = 1.0) {
  Tensors all;
  gather_parameters(model, which, [&](const std::string& name, const at::Tensor& whole) {
    all.emplace(name, at::mul(whole, scale));
  });
  return all;
}

Tensors gather_moments(ParallelModel& model) {
  Tensors all;
  for (const auto& [name, value] : gather(model, &optim::ShardState::exp_avg)) all[name + " 1"] = value;
  for (const auto& [name, value] : gather(model, &optim::ShardState::exp_avg_sq)) all[name + " 2"] = value;
  return all;
}

}  // namespace

std::int64_t synthetic_token(std::int64_t sample, std::int64_t at, std::int64_t vocab) {
  const auto z = mixed(static_cast<std::uint64_t>(sample * 100003 + at + 1) * 0x9E3779B97F4A7C15ull);
  const auto low = static_cast<std::int64_t>((z & 0xFFFFFFFFu) % static_cast<std::uint64_t>(vocab));
  const auto high = static_cast<std::int64_t>((z >> 32) % static_cast<std::uint64_t>(vocab));
  return std::min(low, high);
}

double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  const double difference = at::sub(a.to(at::kDouble), b.to(at::kDouble)).norm().item<double>();
  const double size = b.to(at::kDouble).norm().item<double>();
  return difference == 0 ? 0 : difference / std::max(size, 1e-300);
}

Trajectory train_on(comm::Fabric& fabric, const RunConfig& run, const Treatment& treatment) {
  const auto plan = plan_pipeline(run);
  trace::Tracer tracer;
  std::optional<mesh::DeviceMesh> mesh;
  std::unique_ptr<ParallelModel> model;  // declared before the scheduler: its threads end first
  stream::CpuScheduler scheduler({.deadline = std::chrono::seconds(60),
                                  .on_failure = [&](std::exception_ptr) { fabric.abort("a task of a rank failed"); }});
  const RankContext context{.fabric = fabric,
                            .scheduler = scheduler,
                            .tracer = tracer,
                            .compute = scheduler.add_stream("compute", stream::StreamKind::compute)};
  mesh.emplace(fabric, scheduler, run.mesh_shape(), plan.topology(run.model.tie_embeddings));
  model = parallelize(run, plan, *mesh, context, reader_of(run, mesh->dp_rank(), treatment));

  Trajectory out;
  const ckpt::CheckpointFolder folder(treatment.checkpoints, "ab");
  const auto first = treatment.checkpoints.empty() ? 0 : resume(*model, folder, 0, [](const std::string&) {}).step;
  const auto until = treatment.until < 0 ? run.train.steps : treatment.until;
  out.initial = gather(*model, &optim::ShardState::master);
  if (treatment.wants_moments) out.loaded = gather_moments(*model);
  std::vector<step::StepHandle> handles;
  for (std::int64_t step = first; step < until; ++step) {
    if (step == treatment.leave_out_step) continue;
    handles.push_back(model->submit_step(step, optim::lr_at(run.lr, step + 1, run.train.steps)));
    if (treatment.checks_replicas) {
      model->settle();
      model->drain();
      check_replicas(*model);
    }
    if (step > first) continue;
    const auto tokens = static_cast<double>(handles.back().wait().tokens);
    model->drain();
    out.gradients = gather(*model, &optim::ShardState::grad, 1.0 / tokens);
  }
  model->settle();
  model->drain();
  out.final = gather(*model, &optim::ShardState::master);
  if (treatment.wants_moments) out.moments = gather_moments(*model);
  if (!treatment.checkpoints.empty()) Checkpointer(*model, folder, {.resumed_step = first}).begin(until, false);
  for (const auto& handle : handles) {
    out.losses.push_back(handle.wait().loss);
    out.norms.push_back(handle.wait().grad_norm);
  }
  return out;
}

Trajectory run_trajectory(const RunConfig& run, const Treatment& treatment) {
  Trajectory out;
  run_ranks(static_cast<int>(run.mesh.world()), [&](comm::Fabric& fabric) {
    auto mine = train_on(fabric, run, treatment);
    if (fabric.rank() == 0) out = std::move(mine);
  });
  return out;
}

}  // namespace orthant::tests
