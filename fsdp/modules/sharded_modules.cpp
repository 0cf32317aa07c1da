// SPDX-License-Identifier: Apache-2.0
#include <orthant/fsdp/modules/sharded_modules.hpp>

#include <algorithm>
#include <cmath>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/model/tensor_span.hpp>
#include <orthant/core/optim/gradient_norm.hpp>

namespace orthant::fsdp {

using stream::content_of;

ShardedModules::ShardedModules(const std::vector<ModuleUnit>& units, stream::Scheduler& scheduler, Lanes lanes,
                               ModulesOptions options)
    : options_(std::move(options)),
      scheduler_(scheduler),
      lanes_(lanes),
      declared_(declare(units, table_, store_)),
      progress_(declared_.size()),
      host_(scheduler, "modules"),
      optimizer_(optim::make_optimizer(options_.optimizer)),
      norm_buffer_(scheduler.add_buffer("gradient norm of the modules")) {
  const at::NoGradGuard no_grad;
  const auto values = [this](const shard::FlatUnit& unit, std::int64_t begin, at::Tensor master) {
    fill(unit, begin, std::move(master));
  };
  engine_ = std::make_unique<Engine>(table_, store_, scheduler_, lanes_, values, options_.engine);
  engine_->begin_step(0);
  for (int unit = 0; unit < static_cast<int>(declared_.size()); ++unit) {
    for (BoundParameter& parameter : declared_[unit].parameters) {
      parameter.own.set_data(parameter.shaped(parameter.flat->weight));
    }
    progress_[unit].written.resize(declared_[unit].parameters.size());
    outside_.mark(tensors(unit));
  }
}

Tensors ShardedModules::tensors(int unit) const {
  Tensors result;
  for (const BoundParameter& parameter : declared_[unit].parameters) result.push_back(parameter.own);
  return result;
}

/// Rank 0's values of the unit, of which each rank keeps its slice; the module's own go. One unit at a time is held
/// twice.
void ShardedModules::fill(const shard::FlatUnit& unit, std::int64_t begin, at::Tensor master) {
  const auto whole = at::zeros({unit.padded_numel(lanes_.gather.collectives->size())}, master.options());
  for (const BoundParameter& parameter : declared_[unit.id.value].parameters) {
    const at::Tensor& own = parameter.own;
    if (own.scalar_type() == at::kDouble && master.scalar_type() != at::kDouble) {
      throw ConfigError(fmt::format("'{}' is fp64, the engine's master weights are fp32; set Options::precision to f64",
                                    parameter.name));
    }
    whole.narrow(0, parameter.flat->region.offset, own.numel()).copy_(own.detach().flatten());
    own.set_data(at::empty({1}, own.options()).squeeze(0).expand(own.sizes()));  // keeps the shape, not the memory
  }
  for (const comm::Lane lane : {lanes_.replica, lanes_.gather}) {  // rank 0's copy first, then within each copy
    if (lane.collectives == nullptr) continue;
    scheduler_.wait(scheduler_.submit(
        {.name = "BC " + unit.name, .stream = lane.stream, .start = [whole, group = lane.collectives] {
           return group->broadcast(model::span_of(whole), 0);
         }}));
  }
  master.copy_(whole.narrow(0, begin, master.numel()));
}

int ShardedModules::index_of(const torch::nn::Module& module) const {
  const auto it = std::ranges::find(declared_, &module, &DeclaredUnit::module);
  if (it == declared_.end()) {
    throw InternalError("forward() of a module that is no unit; pass one of the list given to the constructor");
  }
  return static_cast<int>(it - declared_.begin());
}

void ShardedModules::observe(const UnitEvent& event) const {
  if (options_.observer) options_.observer(event);
}

// Weights. Nothing is resharded by hand: a unit's weights go when another unit's are gathered over them, so those that
// are still there at the turn from forward to backward, or in the next micro-batch, are not gathered again.

/// Submits the gather; the claim is for whoever uses the weights.
stream::Claim ShardedModules::gather(int unit) {
  if (prefetched_ != unit) drop_prefetched();
  prefetched_.reset();
  engine_->unshard(declared_[unit].id);
  return engine_->weights(declared_[unit].id);
}

void ShardedModules::prefetch(int unit) {
  if (unit < 0 || unit >= static_cast<int>(declared_.size())) return;
  engine_->unshard(declared_[unit].id);
  prefetched_ = unit;
}

void ShardedModules::drop_prefetched() {
  if (!prefetched_) return;
  const DeclaredUnit& unit = declared_[*prefetched_];
  host_.discard("drop " + unit.name, engine_->weights(unit.id));
  prefetched_.reset();
}

Tensors ShardedModules::run(const torch::nn::Module& module, const Tensors& inputs,
                            const std::function<Tensors(const Tensors&)>& body) {
  const int unit = index_of(module);
  if (backward_) {
    throw InternalError(fmt::format(
        "forward of unit '{}' while the backward of '{}' is unfinished: it failed, named inputs, or runs a forward "
        "again; activation checkpointing inside of ShardedModules is not supported",
        declared_[unit].name, declared_[backward_->unit].name));
  }
  const auto occupation = host_.occupy("F " + declared_[unit].name, {gather(unit)}, {});
  prefetch(unit + 1);
  observe({.kind = UnitEvent::Kind::forward, .unit = unit});
  if (!at::GradMode::is_enabled()) return body(inputs);

  const Tensors parameters = tensors(unit);
  struct Unmark {
    OutsideUse& outside;
    const Tensors& parameters;
    ~Unmark() { outside.mark(parameters); }
  } const unmark{outside_, parameters};

  // Units come in order: an earlier one begins a pass of its own, with which this one's graph has nothing to do.
  if (previous_ && (previous_->unit >= unit || previous_->call->closed)) previous_.reset();
  const auto call = std::make_shared<Call>(Call{.step = steps_});
  UnitGraph graph(hooks(unit, call), inputs, previous_ ? &previous_->graph : nullptr);
  graph.narrow(parameters);
  Tensors outputs = body(graph.inputs());
  if (graph.close(outputs)) ++progress_[unit].open;
  previous_.emplace(Recorded{unit, call, std::move(graph)});
  return outputs;
}

// Backward: what the nodes of a unit's graph call.

UnitHooks ShardedModules::hooks(int unit, const std::shared_ptr<Call>& call) {
  return {.open = [this, unit, call] { open_backward(unit, *call); },
          .gradient = [this, unit](int index, const at::Tensor& gradient) { add_gradient(unit, index, gradient); },
          .close = [this, unit, call] { close_backward(unit, *call); }};
}

void ShardedModules::open_backward(int unit, const Call& call) {
  const std::string& name = declared_[unit].name;
  if (backward_) {
    throw InternalError(fmt::format("backward of unit '{}' begins while that of '{}' is unfinished", name,
                                    declared_[backward_->unit].name));
  }
  if (call.step != steps_) {
    throw InternalError(fmt::format(
        "backward of unit '{}' after step(): its forward was run with the weights before; run it again", name));
  }
  auto occupation = contribute(unit, "B " + name, {gather(unit)});
  backward_.emplace(Backward{unit, std::move(occupation)});
  prefetch(unit - 1);
  progress_[unit].written.assign(declared_[unit].parameters.size(), false);
  observe({.kind = UnitEvent::Kind::backward, .unit = unit});
}

void ShardedModules::add_gradient(int unit, int index, const at::Tensor& gradient) {
  const BoundParameter& parameter = declared_[unit].parameters[index];
  const at::Tensor into = parameter.shaped(parameter.flat->grad);
  if (parameter.flat->next_contribution() == model::kernels::Accumulate::overwrite) {
    into.copy_(gradient);
  } else {
    into.add_(gradient);
  }
  progress_[unit].written[index] = true;
  observe({.kind = UnitEvent::Kind::gradient, .unit = unit, .parameter = index});
}

void ShardedModules::close_backward(int unit, Call& call) {
  Progress& progress = progress_[unit];
  backward_.reset();
  if (!std::exchange(call.closed, true)) --progress.open;
  if (++progress.closed > options_.microbatches) {
    throw InternalError(
        fmt::format("unit '{}' has its backward number {} of this step; wanted {}: set ModulesOptions::microbatches",
                    declared_[unit].name, progress.closed, options_.microbatches));
  }
  const auto written = std::ranges::count(progress.written, true);
  observe({.kind = UnitEvent::Kind::gate, .unit = unit, .written = static_cast<int>(written)});
  const bool last = progress.closed == options_.microbatches;
  if (last || options_.engine.residency.gradients == train::Residency::layer) reduce(unit, last);
}

/// Occupies the gradient buffer; the unit counts as unreduced from here.
HostStream::Occupation ShardedModules::contribute(int unit, const std::string& name, std::vector<stream::Claim> reads) {
  const UnitId id = declared_[unit].id;
  auto claims = engine_->contribute(id);
  progress_[unit].unreduced = true;
  reads.insert(reads.end(), claims.reads.begin(), claims.reads.end());
  auto occupation = host_.occupy(name, std::move(reads), std::move(claims.writes));
  if (claims.overwrite) store_.overwrite_gradients(id);
  return occupation;
}

std::vector<std::string> ShardedModules::unwritten(int unit) const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < progress_[unit].written.size(); ++i) {
    if (!progress_[unit].written[i]) names.push_back(declared_[unit].parameters[i].name);
  }
  return names;
}

/// Parameters that nobody wrote since the last reduction count as zero there.
void ShardedModules::reduce(int unit, bool last) {
  engine_->reduce(declared_[unit].id, last);
  progress_[unit].unreduced = false;
}

// The end of a step.

/// Units that had fewer backward passes than expected, or none: in the order of backward, the same on all ranks.
void ShardedModules::reduce_rest() {
  for (int unit = static_cast<int>(declared_.size()) - 1; unit >= 0; --unit) {
    if (progress_[unit].closed == options_.microbatches) continue;
    if (!progress_[unit].unreduced) contribute(unit, "no B " + declared_[unit].name, {}).reset();
    reduce(unit, true);
  }
}

/// Of the sum of all ranks' gradients. Each copy of the parameters adds up its own slices.
double ShardedModules::gradient_norm() {
  const stream::Claim own{norm_buffer_, content_of("own norm", steps_)};
  const stream::Claim all{norm_buffer_, content_of("norm", steps_)};
  std::vector<stream::Claim> gradients;
  for (const auto& shard : shards()) gradients.push_back(engine_->gradient(shard.unit));
  {
    const auto occupation = host_.occupy("NORM", std::move(gradients), {own});
    norm_ = 0;
    for (const auto& shard : shards()) norm_ += optim::sum_of_squares(shard.grad);
  }
  scheduler_.submit(
      {.name = "AR norm", .stream = lanes_.reduce.stream, .reads = {own}, .writes = {all}, .start = [this] {
         return lanes_.reduce.collectives->all_reduce({&norm_, 1, DType::f64}, comm::Reduction::sum);
       }});
  const auto occupation = host_.occupy("norm known", {all}, {});
  return std::sqrt(norm_);
}

StepReport ShardedModules::step(const StepOptions& options) {
  const at::NoGradGuard no_grad;
  for (std::size_t unit = 0; unit < progress_.size(); ++unit) {
    if (progress_[unit].open == 0) continue;
    throw InternalError(
        fmt::format("step(): {} forward(s) of unit '{}' had no backward; run what needs none under at::NoGradGuard",
                    progress_[unit].open, declared_[unit].name));
  }
  drop_prefetched();
  reduce_rest();
  StepReport report{.grad_norm = gradient_norm() / options.divide_by};
  if (!std::isfinite(report.grad_norm)) {
    throw NonFiniteError(fmt::format("gradient norm {} at step {}; no weight was changed", report.grad_norm, steps_));
  }
  const double clip = options_.grad_clip > 0 ? optim::clip_scale(report.grad_norm, options_.grad_clip) : 1.0;
  report.clipped = clip < 1.0;
  for (auto& shard : shards()) {
    std::vector<stream::Claim> reads{engine_->gradient(shard.unit), engine_->slice(shard.unit)};
    const auto occupation =
        host_.occupy("STEP " + table_.unit(shard.unit).name, std::move(reads), {engine_->next_weights(shard.unit)});
    optimizer_->step(shard, options.lr, clip / options.divide_by);
  }
  for (Progress& progress : progress_) progress.closed = 0;
  previous_.reset();
  engine_->begin_step(++steps_);
  return report;
}

}  // namespace orthant::fsdp
