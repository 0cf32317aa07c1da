// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/trainer.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/error.hpp>
#include <orthant/launch/memory_report.hpp>
#include <orthant/launch/replica_check.hpp>
#include <orthant/launch/weights.hpp>

namespace orthant::launch {
namespace {

using Clock = std::chrono::steady_clock;

double ms_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double, std::milli>(b - a).count();
}

/// Takes results as they come: checks, progress, metrics, step times.
class Results {
 public:
  Results(const ParallelModel& model, const TrainerOptions& options)
      : options_(options),
        total_(model.run().train.steps),
        may_skip_(model.run().train.max_skipped_steps),
        progress_({.total_steps = total_, .log_every = model.run().train.log_every, .visible = options.reports}),
        last_(Clock::now()) {}

  void take(std::int64_t step, double lr, step::StepHandle handle) {
    const auto& result = handle.wait();
    const auto now = Clock::now();
    const double ms = ms_between(last_, now);
    last_ = now;
    note_skipped(step, result);
    step_ms_.push_back(ms);
    summary.steps = step + 1;
    summary.last_loss = result.loss;
    tokens_ = static_cast<double>(result.tokens);
    progress_.step({.step = step + 1,
                    .loss = result.loss,
                    .grad_norm = result.grad_norm,
                    .lr = lr,
                    .tokens_per_s = tokens_ / ms * 1e3});
    if (options_.folder == nullptr) return;
    options_.folder->metrics({{"step", step + 1},
                              {"loss", result.loss},
                              {"grad_norm", result.grad_norm},
                              {"lr", lr},
                              {"tokens", result.tokens},
                              {"step_ms", ms},
                              {"tokens_per_s", tokens_ / ms * 1e3},
                              {"memory_peak_bytes", peak_resident_bytes()}});
  }

  void take_validation(double loss) {
    if (!summary.first_validation_loss) summary.first_validation_loss = loss;
    summary.last_validation_loss = loss;
    progress_.line(fmt::format("step {:>5}/{}  validation loss {:.6f}", summary.steps, total_, loss));
    if (options_.folder != nullptr) options_.folder->metrics({{"step", summary.steps}, {"val_loss", loss}});
    last_ = Clock::now();
  }

  TrainSummary finish() {
    progress_.finish();
    auto times = step_ms_.size() > 3 ? std::vector<double>(step_ms_.begin() + 3, step_ms_.end()) : step_ms_;
    if (!times.empty()) {
      std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
      summary.tokens_per_s = tokens_ / times[times.size() / 2] * 1e3;
    }
    return summary;
  }

  TrainSummary summary;

 private:
  void note_skipped(std::int64_t step, const step::StepResult& result) {
    if (result.finite) {
      skipped_in_a_row_ = 0;
      return;
    }
    const auto text = fmt::format("step {}: loss {} and gradient norm {} are not finite; the step changed no weight",
                                  step + 1, result.loss, result.grad_norm);
    if (++skipped_in_a_row_ > may_skip_) throw NonFiniteError(text);
    ++summary.skipped_steps;
    progress_.line(text);
  }

  const TrainerOptions& options_;
  std::int64_t total_;
  std::int64_t may_skip_;
  std::int64_t skipped_in_a_row_ = 0;
  Progress progress_;
  Clock::time_point last_;
  std::vector<double> step_ms_;
  double tokens_ = 0;
};

struct Submitted {
  std::int64_t step;
  double lr;
  step::StepHandle handle;
};

}  // namespace

TrainSummary train(ParallelModel& model, const TrainerOptions& options) {
  const auto& run = model.run();
  auto& tracer = model.context().tracer;
  Results results(model, options);
  auto& stopped = results.summary.stopped;
  const auto validate_now = [&] {
    if (options.validation_batches == 0) return;
    const auto validation = validate(model, options.validation_batches);
    stopped = validation.stopped;
    if (!stopped) results.take_validation(validation.loss);
  };
  validate_now();

  // With post-validation a step's result comes while the next one runs: it is taken one step later.
  std::optional<Submitted> open;
  const auto take = [&] {
    if (!open) return;
    results.take(open->step, open->lr, open->handle);
    stopped = open->handle.wait().stop;
    open.reset();
  };
  for (std::int64_t step = 0; step < run.train.steps && !stopped; ++step) {
    if (step == run.trace.first_step && run.trace.steps > 0) tracer.enable();
    const double lr = optim::lr_at(run.lr, step + 1, run.train.steps);
    auto handle = model.submit_step(step, lr);
    take();
    open = {step, lr, handle};
    const bool last = step + 1 == run.train.steps || stopped;
    const bool due = run.train.validate_every > 0 && (step + 1) % run.train.validate_every == 0;
    const bool saves = step == 0 && !options.save_gradients.empty();
    const bool compares = run.check_replicas_every > 0 && (last || (step + 1) % run.check_replicas_every == 0);
    if (last || due || saves || compares) model.settle();
    if (!model.is_open()) take();
    if (compares) {
      model.drain();
      if (run.fault.kind == "diverge" && run.fault.rank == model.mesh().rank() && step + 1 >= run.fault.step)
        make_replicas_differ(model);
      check_replicas(model);
    }
    if (saves) {
      model.drain();
      save_tensors(model, &optim::ShardState::grad, 1.0 / static_cast<double>(handle.wait().tokens),
                   options.save_gradients);
    }
    if (step + 1 == run.trace.first_step + run.trace.steps) tracer.disable();
    if (!stopped && (last || due)) validate_now();
  }
  model.settle();
  take();
  model.drain();
  results.summary.copy_bytes = model.copy_bytes();
  return results.finish();
}

ValidationResult validate(ParallelModel& model, std::int64_t batches) {
  ValidationResult out;
  double loss = 0, tokens = 0;
  for (std::int64_t batch = 0; batch < batches && !out.stopped; ++batch) {
    auto handle = model.submit_validation(batch);
    const auto& result = handle.wait();
    loss += result.loss * static_cast<double>(result.tokens);
    tokens += static_cast<double>(result.tokens);
    out.stopped = result.stop;
  }
  out.loss = loss / std::max(tokens, 1.0);
  return out;
}

}  // namespace orthant::launch
