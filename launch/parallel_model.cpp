// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/parallel_model.hpp>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/launch/fault_injector.hpp>

namespace orthant::launch {

void ParallelModel::begin(step::StepInput input, pipeline::PassKind kind) {
  context_.scheduler.submit({.name = fmt::format("BEGIN {}", input.step),
                             .stream = context_.compute,
                             .body = [this, input](stream::TaskScope&) {
                               inject(run_.fault, input.training ? RunPhase::step : RunPhase::evaluation,
                                      context_.fabric.rank(), input.step + 1);
                               parts_->program->begin(input);
                             }});
  parts_->executor->begin(kind);
}

step::StepHandle ParallelModel::submit_step(std::int64_t step, double lr) {
  const auto& plan = parts_->training_plan;
  const step::StepInput input{.step = step, .training = true};
  parts_->data_parallel->sync.begin_step(step);
  begin(input, pipeline::PassKind::training);
  ++submitted_steps_;
  parts_->executor->submit(plan.warm_up);
  if (is_open() && !parts_->tail->settle()) {  // what ran on weights that do not stand is done again
    parts_->executor->drop_unread();
    begin(input, pipeline::PassKind::training);
    parts_->executor->submit(plan.warm_up);
  }
  parts_->submitted = {.step = step, .lr = lr, .norm_mode = next_norm_mode()};
  parts_->executor->submit(plan.rest);
  invariant(parts_->submitted.handle.has_value(), "a training plan has no NORM");
  return *parts_->submitted.handle;
}

/// Every rank decides alike: it looks at results that all ranks have.
step::NormMode ParallelModel::next_norm_mode() {
  const auto& wanted = run_.pipeline.post_validation;
  if (parts_->submitted.handle) {
    const auto& last = parts_->submitted.handle->wait();
    unclipped_steps_ = last.clipped || !last.finite ? 0 : unclipped_steps_ + 1;
  }
  const bool calm = run_.mesh.pp > 1 && copies_fit_ && unclipped_steps_ >= kCalmSteps;
  return wanted == "on" || (wanted == "auto" && calm) ? step::NormMode::post_validation : step::NormMode::barrier;
}

step::StepHandle ParallelModel::submit_validation(std::int64_t batch) {
  begin({.step = batch, .training = false}, pipeline::PassKind::evaluation);
  parts_->executor->submit(parts_->validation_plan);
  return parts_->tail->loss_only();
}

}  // namespace orthant::launch
