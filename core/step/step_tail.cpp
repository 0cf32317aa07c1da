// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/step/step_tail.hpp>

#include <cmath>

#include <orthant/core/model/tensor_span.hpp>
#include <orthant/core/optim/gradient_norm.hpp>

namespace orthant::step {

StepTail::StepTail(stream::Scheduler& scheduler, TailLanes lanes, const shard::ParameterTable& table,
                   train::GradSync& sync, train::ShardStore& store, optim::Optimizer& optimizer, LlamaProgram& program,
                   TailOptions options)
    : scheduler_(scheduler),
      lanes_(lanes),
      table_(table),
      sync_(sync),
      store_(store),
      optimizer_(optimizer),
      program_(program),
      options_(options),
      stats_buffer_(scheduler.add_buffer("loss and norm")) {}

void StepTail::all_reduce_gradient(optim::ShardState& shard, comm::Lane lane, const char* what) {
  const auto claim = store_.gradient(shard.unit);
  scheduler_.submit({.name = std::string(what) + " " + table_.unit(shard.unit).name,
                     .stream = lane.stream,
                     .reads = {claim},
                     .writes = {claim},
                     .start = [grad = shard.grad, lane] {
                       return lane.collectives->all_reduce(model::span_of(grad), comm::Reduction::sum);
                     }});
}

void StepTail::norm_units() {
  for (auto& shard : store_.shards()) {
    const auto& unit = table_.unit(shard.unit);
    if (unit.kind != shard::UnitKind::norms) continue;
    sync_.reduce(unit.id);
    if (unit.tensor_partial) all_reduce_gradient(shard, lanes_.tp, "AR tp");
  }
}

void StepTail::tie() {
  for (auto& shard : store_.shards()) {
    if (table_.unit(shard.unit).tied) all_reduce_gradient(shard, lanes_.tie, "AR tie");
  }
}

StepHandle StepTail::norm() {
  std::vector<stream::Claim> gradients;
  for (const auto& shard : store_.shards()) gradients.push_back(store_.gradient(shard.unit));
  return reduce_stats(std::move(gradients), true);
}

StepHandle StepTail::loss_only() { return reduce_stats({}, false); }

StepHandle StepTail::reduce_stats(std::vector<stream::Claim> reads, bool with_gradients) {
  ++serial_;
  const auto local = stream::content_of("local stats", serial_), global = stream::content_of("global stats", serial_);
  scheduler_.submit({.name = with_gradients ? "NORM" : "LOSS",
                     .stream = lanes_.compute,
                     .reads = std::move(reads),
                     .writes = {{stats_buffer_, local}},
                     .body = [this, with_gradients](stream::TaskScope&) {
                       stats_ = {.stops = options_.stop_requested() ? 1.0 : 0.0};
                       if (options_.counts_loss) {
                         stats_.loss_sum = program_.loss_sum();
                         stats_.tokens = static_cast<double>(program_.tokens());
                       }
                       if (!with_gradients) return;
                       for (const auto& shard : store_.shards()) {
                         if (shard.counted) stats_.sum_of_squares += optim::sum_of_squares(shard.grad);
                       }
                     }});
  scheduler_.submit({.name = "AR loss and norm",
                     .stream = lanes_.world.stream,
                     .reads = {{stats_buffer_, local}},
                     .writes = {{stats_buffer_, global}},
                     .start = [this] {
                       return lanes_.world.collectives->all_reduce(
                           {&stats_, sizeof stats_ / sizeof(double), DType::f64}, comm::Reduction::sum);
                     }});
  auto result = std::make_shared<StepResult>();
  const auto task = scheduler_.submit({.name = "RESULT",
                                       .stream = lanes_.compute,
                                       .reads = {{stats_buffer_, global}},
                                       .body = [this, result](stream::TaskScope&) {
                                         const double tokens = std::max(stats_.tokens, 1.0);
                                         result->tokens = static_cast<std::int64_t>(stats_.tokens);
                                         result->loss = stats_.loss_sum / tokens;
                                         result->grad_norm = std::sqrt(stats_.sum_of_squares) / tokens;
                                         result->stop = stats_.stops > 0;
                                       }});
  return StepHandle(scheduler_, task, std::move(result));
}

void StepTail::update(std::int64_t step, double lr) {
  const auto global = stream::content_of("global stats", serial_);
  for (auto& shard : store_.shards()) {
    const auto gradient = store_.gradient(shard.unit);
    const auto weights = store_.next_weights(shard.unit);
    scheduler_.submit({.name = "STEP " + table_.unit(shard.unit).name,
                       .stream = lanes_.compute,
                       .reads = {{stats_buffer_, global}, gradient},
                       .writes = {weights},
                       .body = [this, &shard, step, lr](stream::TaskScope&) {
                         const double tokens = std::max(stats_.tokens, 1.0);
                         const double norm = std::sqrt(stats_.sum_of_squares) / tokens;
                         // A step that is not finite changes nothing, on any rank; the trainer stops the run.
                         if (!std::isfinite(norm) || !std::isfinite(stats_.loss_sum)) return;
                         const double clip = options_.grad_clip > 0 ? optim::clip_scale(norm, options_.grad_clip) : 1.0;
                         optimizer_.step(shard, lr, step + 1, clip / tokens);
                       }});
  }
}

}  // namespace orthant::step
