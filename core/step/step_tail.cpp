// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/step/step_tail.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <orthant/core/model/tensor_span.hpp>
#include <orthant/core/optim/gradient_norm.hpp>

namespace orthant::step {

using stream::content_of;

namespace {

/// The name of the parameter that the first element of `range` that is no finite number belongs to.
std::string first_not_finite(const shard::ParameterTable& table, const optim::ShardState& shard, shard::Range range) {
  for (const int index : table.unit(shard.unit).parameters) {
    const auto& parameter = table.parameters()[static_cast<std::size_t>(index)];
    const auto [begin, end] = shard::common(range, shard::elements_of(parameter));
    if (begin >= end) continue;
    if (!std::isfinite(optim::sum_of_squares(shard.grad.narrow(0, begin - shard.begin, end - begin))))
      return parameter.name;
  }
  return table.unit(shard.unit).name;
}

}  // namespace

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
      stage_buffer_(scheduler.add_buffer("loss and norm of the stage")),
      known_buffer_(scheduler.add_buffer("loss and norm")),
      before_buffer_(scheduler.add_buffer("loss and norm of the ranks before")),
      whole_buffer_(scheduler.add_buffer("loss and norm of the pipeline")) {
  for (const auto& shard : store.shards()) {
    const shard::Range slice{shard.begin, shard.begin + shard.master.numel()};
    ranges_.push_back({slice, owned_ranges(table, shard.unit, slice), partial_ranges(table, shard.unit, slice)});
  }
}

void StepTail::all_reduce_gradient(optim::ShardState& shard, shard::Range range, comm::Lane lane, const char* what) {
  const auto claim = store_.gradient(shard.unit);
  scheduler_.submit({.name = std::string(what) + " " + table_.unit(shard.unit).name,
                     .stream = lane.stream,
                     .reads = {claim},
                     .writes = {claim},
                     .start = [grad = shard.grad.narrow(0, range.begin - shard.begin, range.length()), lane] {
                       return lane.collectives->all_reduce(model::span_of(grad), comm::Reduction::sum);
                     }});
}

void StepTail::norm_units(std::int64_t step) {
  training_step_ = step;
  for (auto& shard : store_.shards()) {
    const auto& unit = table_.unit(shard.unit);
    if (unit.kind != shard::UnitKind::norms || !trains(shard)) continue;
    sync_.reduce(unit.id, true);
  }
}

void StepTail::tie() {
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    auto& shard = store_.shards()[i];
    if (table_.unit(shard.unit).tied && trains(shard))
      all_reduce_gradient(shard, ranges_[i].whole, lanes_.tie, "AR tie");
  }
}

void StepTail::sum_partial_gradients() {
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    auto& shard = store_.shards()[i];
    if (!trains(shard)) continue;
    for (const auto& [range, copies] : ranges_[i].partial) {
      const bool all = copies == lanes_.tp.collectives->size();
      all_reduce_gradient(shard, range, all ? lanes_.tp : lanes_.tp_share, "AR tp");
    }
  }
}

StepHandle StepTail::norm(NormMode mode) {
  mode_ = mode;
  sum_partial_gradients();
  std::vector<stream::Claim> gradients;
  for (const auto& shard : store_.shards()) {
    if (trains(shard)) gradients.push_back(store_.gradient(shard.unit));
  }
  sum_over_stage(std::move(gradients), true);
  if (mode == NormMode::barrier) {
    sum_over_pipeline();
    return result({known_buffer_, content_of("known", serial_)}, known_);
  }
  sum_up_to_here();
  return result({whole_buffer_, content_of("whole", serial_)}, whole_);
}

StepHandle StepTail::loss_only() {
  sum_over_stage({}, false);
  sum_over_pipeline();
  return result({known_buffer_, content_of("known", serial_)}, known_);
}

void StepTail::sum_over_stage(std::vector<stream::Claim> reads, bool with_gradients) {
  ++serial_;
  const auto here = content_of("of the rank", serial_), stage = content_of("of the stage", serial_);
  scheduler_.submit({.name = with_gradients ? "NORM" : "LOSS",
                     .stream = lanes_.compute,
                     .reads = std::move(reads),
                     .writes = {{stage_buffer_, here}},
                     .body = [this, step = training_step_, with_gradients](stream::TaskScope&) {
                       const Votes votes = options_.votes();
                       stage_ = {.stops = votes.stop ? 1.0 : 0.0,
                                 .saves = votes.save ? 1.0 : 0.0,
                                 .written = votes.written ? 1.0 : 0.0};
                       if (options_.counts_loss) {
                         stage_.loss_sum = program_.loss_sum();
                         stage_.tokens = static_cast<double>(program_.count_tokens());
                       }
                       if (with_gradients) add_sum_of_squares(step);
                     }});
  scheduler_.submit({.name = "AR stage norm",
                     .stream = lanes_.stage.stream,
                     .reads = {{stage_buffer_, here}},
                     .writes = {{stage_buffer_, stage}},
                     .start = [this] {
                       return lanes_.stage.collectives->all_reduce(
                           {&stage_, sizeof stage_ / sizeof(double), DType::f64}, comm::Reduction::sum);
                     }});
}

void StepTail::add_sum_of_squares(std::int64_t step) {
  non_finite_.clear();
  const double poison = options_.poison(step);
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const auto& shard = store_.shards()[i];
    if (!table_.unit(shard.unit).trains_in(step)) continue;
    if (poison != 0) shard.grad.narrow(0, 0, 1).fill_(poison);
    if (!shard.counted) continue;
    for (const auto& range : ranges_[i].owned) {
      const double sum = optim::sum_of_squares(shard.grad.narrow(0, range.begin - shard.begin, range.length()));
      stage_.sum_of_squares += sum;
      if (!std::isfinite(sum) && non_finite_.empty()) non_finite_ = first_not_finite(table_, shard, range);
    }
  }
}

/// The barrier: every rank waits for all. The sum is taken in rank order, as sum_up_to_here() takes it.
void StepTail::sum_over_pipeline() {
  scheduler_.submit({.name = "AR norm",
                     .stream = lanes_.pp.stream,
                     .reads = {{stage_buffer_, content_of("of the stage", serial_)}},
                     .writes = {{known_buffer_, content_of("known", serial_)}},
                     .start = [this] {
                       known_ = stage_;
                       return lanes_.pp.collectives->all_reduce(over_pipeline(known_), comm::Reduction::sum);
                     }});
}

/// Post-validation: a rank adds its own to the sum of the ranks before it and goes on; the last rank's sum is the
/// whole, and comes back while the next step has begun.
void StepTail::sum_up_to_here() {
  const stream::Claim before{before_buffer_, content_of("before", serial_)};
  const stream::Claim known{known_buffer_, content_of("known", serial_)};
  std::vector<stream::Claim> reads{{stage_buffer_, content_of("of the stage", serial_)}};
  if (lanes_.prefix_in.channel != nullptr) {
    scheduler_.submit(
        {.name = "RECV prefix norm", .stream = lanes_.prefix_in.stream, .writes = {before}, .start = [this] {
           return lanes_.prefix_in.channel->receive(over_pipeline(before_));
         }});
    reads.push_back(before);
  }
  scheduler_.submit({.name = "PREFIX NORM",
                     .stream = lanes_.compute,
                     .reads = std::move(reads),
                     .writes = {known},
                     .body = [this](stream::TaskScope&) {
                       known_ = stage_;
                       if (lanes_.prefix_in.channel == nullptr) return;
                       known_.loss_sum = before_.loss_sum + stage_.loss_sum;
                       known_.sum_of_squares = before_.sum_of_squares + stage_.sum_of_squares;
                       known_.stops = before_.stops + stage_.stops;
                       known_.saves = before_.saves + stage_.saves;
                       known_.written = before_.written + stage_.written;
                     }});
  if (lanes_.prefix_out.channel != nullptr) {
    scheduler_.submit(
        {.name = "SEND prefix norm", .stream = lanes_.prefix_out.stream, .reads = {known}, .start = [this] {
           return lanes_.prefix_out.channel->send(over_pipeline(known_));
         }});
  }
  scheduler_.submit({.name = "BC norm",
                     .stream = lanes_.pp.stream,
                     .reads = {known},
                     .writes = {{whole_buffer_, content_of("whole", serial_)}},
                     .start = [this] {
                       whole_ = known_;
                       return lanes_.pp.collectives->broadcast(over_pipeline(whole_),
                                                               lanes_.pp.collectives->size() - 1);
                     }});
}

/// On the pipeline's request stream, so that no computation waits for it.
StepHandle StepTail::result(stream::Claim source, const Stats& stats) {
  auto result = std::make_shared<StepResult>();
  const auto task = scheduler_.submit(
      {.name = "RESULT", .stream = lanes_.pp.stream, .reads = {source}, .start = [this, result, &stats] {
         *result = judge(stats);
         result->non_finite_here = non_finite_;
         return stream::Work::done();
       }});
  handle_.emplace(scheduler_, task, std::move(result));
  return *handle_;
}

StepResult StepTail::judge(const Stats& stats) const {
  const double tokens = std::max(stats.tokens, 1.0);
  StepResult result{.loss = stats.loss_sum / tokens,
                    .grad_norm = std::sqrt(stats.sum_of_squares) / tokens,
                    .tokens = static_cast<std::int64_t>(stats.tokens),
                    .stop = stats.stops > 0,
                    .save = stats.saves > 0,
                    .written = static_cast<std::int64_t>(stats.written)};
  result.finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  result.clipped = result.finite && scale(result) < 1.0;
  return result;
}

double StepTail::scale(const StepResult& verdict) const {
  return options_.grad_clip > 0 ? optim::clip_scale(verdict.grad_norm, options_.grad_clip) : 1.0;
}

/// One task a unit on the compute stream; its result is the unit's next weights.
/// again  replaces those of an open step, whether anybody has read them or not.
void StepTail::step_each(const char* name, bool again, std::function<void(optim::ShardState&)> body) {
  for (auto& shard : store_.shards()) {
    if (!trains(shard)) continue;
    std::vector<stream::Claim> reads{{known_buffer_, content_of("known", serial_)}, store_.gradient(shard.unit)};
    if (again) reads.push_back(store_.slice(shard.unit));
    scheduler_.submit({.name = std::string(name) + " " + table_.unit(shard.unit).name,
                       .stream = lanes_.compute,
                       .reads = std::move(reads),
                       .writes = {store_.next_weights(shard.unit)},
                       .body = [&shard, body](stream::TaskScope&) { body(shard); }});
  }
}

void StepTail::update(double lr) {
  lr_ = lr;
  open_ = mode_ == NormMode::post_validation;
  // A step that is not finite changes nothing, on any rank. Ahead of the norm, a sum that is above the limit already is
  // no reason to step: the whole can only be larger.
  step_each("STEP", false, [this, lr, ahead = open_](optim::ShardState& shard) {
    const StepResult known = judge(known_);
    if (ahead) copies_.save(shard);
    if (!known.finite || (ahead && known.clipped)) return;
    optimizer_.step(shard, lr, scale(known) / std::max(known_.tokens, 1.0));
  });
}

bool StepTail::settle() {
  if (!open_) return true;
  open_ = false;
  const StepResult whole = handle_->wait();
  if (whole.finite && !whole.clipped) return true;
  step_each(whole.finite ? "STEP AGAIN" : "ROLLBACK", true, [this, lr = lr_, whole](optim::ShardState& shard) {
    copies_.restore(shard);
    if (whole.finite) optimizer_.step(shard, lr, scale(whole) / std::max(known_.tokens, 1.0));
  });
  return false;
}

}  // namespace orthant::step
