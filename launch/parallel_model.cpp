// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/parallel_model.hpp>

#include <csignal>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>

namespace orthant::launch {
namespace {

void inject_fault(const FaultConfig& fault, int rank, const step::StepInput& input) {
  if (fault.kind == "none" || !input.training || fault.rank != rank || fault.step != input.step + 1) return;
  if (fault.kind == "kill") std::raise(SIGKILL);
  throw InternalError(fmt::format("fault injected by the config ([fault] kind = \"throw\", step = {})", fault.step));
}

}  // namespace

void ParallelModel::begin(step::StepInput input) {
  context_.scheduler.submit({.name = fmt::format("BEGIN {}", input.step),
                             .stream = context_.compute,
                             .body = [this, input](stream::TaskScope&) {
                               inject_fault(run_.fault, context_.fabric.rank(), input);
                               parts_->program->begin(input);
                             }});
}

step::StepHandle ParallelModel::submit_step(std::int64_t step, double lr) {
  begin({.step = step, .training = true});
  ++submitted_steps_;
  parts_->submitted = {.step = step, .lr = lr};
  parts_->executor->submit(parts_->training_plan);
  invariant(parts_->submitted.handle.has_value(), "a training plan has no NORM");
  return *parts_->submitted.handle;
}

step::StepHandle ParallelModel::submit_validation(std::int64_t batch) {
  begin({.step = batch, .training = false});
  parts_->executor->submit(parts_->validation_plan);
  return parts_->tail->loss_only();
}

}  // namespace orthant::launch
