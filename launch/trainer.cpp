// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/trainer.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/agree.hpp>
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
  Results(ParallelModel& model, const TrainerOptions& options)
      : model_(model),
        options_(options),
        total_(model.run().train.steps),
        may_skip_(model.run().train.max_skipped_steps),
        last_(Clock::now()) {
    summary.steps = options.first_step;
  }

  void take(std::int64_t step, double lr, step::StepHandle handle) {
    const auto& result = handle.wait();
    const auto now = Clock::now();
    const double ms = ms_between(last_, now);
    last_ = now;
    note_skipped(step, result);
    step_ms_.push_back(ms);
    training_s_ += ms * 1e-3;
    summary.steps = step + 1;
    summary.last_loss = result.loss;
    tokens_ = static_cast<double>(result.tokens);
    if (options_.progress != nullptr)
      options_.progress->step({.step = step + 1,
                               .loss = result.loss,
                               .grad_norm = result.grad_norm,
                               .lr = lr,
                               .tokens_per_s = tokens_ / ms * 1e3});
    note_in_ledger();
    if (options_.folder == nullptr) return;
    options_.folder->metrics({{"step", step + 1},
                              {"loss", result.loss},
                              {"grad_norm", result.grad_norm},
                              {"lr", lr},
                              {"tokens", result.tokens},
                              {"samples", (step + 1) * model_.run().train.global_batch},
                              {"skipped", summary.skipped_steps},
                              {"step_ms", ms},
                              {"tokens_per_s", tokens_ / ms * 1e3},
                              {"memory_peak_bytes", peak_resident_bytes()}});
  }

  void take_validation(double loss) {
    if (!summary.first_validation_loss) summary.first_validation_loss = loss;
    summary.last_validation_loss = loss;
    say(fmt::format("step {:>5}/{}  validation loss {:.6f}", summary.steps, total_, loss));
    if (options_.folder != nullptr) options_.folder->metrics({{"step", summary.steps}, {"val_loss", loss}});
  }

  /// What has passed since the last step was no step.
  void leave_out_time() { last_ = Clock::now(); }

  TrainSummary finish() {
    note_in_ledger();
    if (options_.progress != nullptr) options_.progress->finish();
    auto times = step_ms_.size() > 3 ? std::vector<double>(step_ms_.begin() + 3, step_ms_.end()) : step_ms_;
    if (!times.empty()) {
      std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
      summary.tokens_per_s = tokens_ / times[times.size() / 2] * 1e3;
    }
    return summary;
  }

  TrainSummary summary;

 private:
  void say(const std::string& text) {
    if (options_.progress != nullptr) options_.progress->line(text);
  }

  void note_in_ledger() {
    if (options_.ledger == nullptr) return;
    options_.ledger->progress(summary.steps, training_s_,
                              options_.checkpointer ? options_.checkpointer->times().stall_s : 0);
  }

  void note_skipped(std::int64_t step, const step::StepResult& result) {
    if (result.finite) {
      skipped_in_a_row_ = 0;
      return;
    }
    const auto found =
        comm::gather_strings(*model_.mesh().control().collectives, result.non_finite_here, model_.context().timeout);
    auto text = fmt::format("step {}: loss {} or gradient norm {} is not finite; the step changed no weight", step + 1,
                            result.loss, result.grad_norm);
    for (std::size_t rank = 0; rank < found.size(); ++rank) {
      if (!found[rank].empty()) text += fmt::format("\n  rank {}: gradient of {}", rank, found[rank]);
    }
    if (++skipped_in_a_row_ > may_skip_)
      throw NonFiniteError(
          fmt::format("{}\n  more than train.max_skipped_steps = {} in a row end the run", text, may_skip_));
    ++summary.skipped_steps;
    say("WARNING: " + text);
  }

  ParallelModel& model_;
  const TrainerOptions& options_;
  std::int64_t total_;
  std::int64_t may_skip_;
  std::int64_t skipped_in_a_row_ = 0;
  Clock::time_point last_;
  std::vector<double> step_ms_;
  double training_s_ = 0;
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
  auto* checkpointer = options.checkpointer;
  Results results(model, options);
  auto& stopped = results.summary.stopped;
  bool wants_save = false;
  const auto validate_now = [&] {
    if (options.validation_batches == 0) return;
    options.enter(RunPhase::evaluation, results.summary.steps);
    const auto validation = validate(model, options.validation_batches);
    stopped = validation.stopped;
    wants_save = wants_save || validation.wants_save;
    if (!stopped) results.take_validation(validation.loss);
    options.enter(RunPhase::step, results.summary.steps);
    results.leave_out_time();
  };
  const auto while_saving = [&](const auto& action) {
    options.enter(RunPhase::save, results.summary.steps);
    action();
    options.enter(RunPhase::step, results.summary.steps);
    results.leave_out_time();
  };
  options.enter(RunPhase::step, options.first_step);
  if (options.first_step == 0) validate_now();

  // With post-validation a step's result comes while the next one runs: it is taken one step later.
  std::optional<Submitted> open;
  const auto take = [&] {
    if (!open) return;
    results.take(open->step, open->lr, open->handle);
    const auto& result = open->handle.wait();
    stopped = result.stop;
    wants_save = wants_save || result.save;
    open.reset();
    // All ranks see it in the same step's result, so they commit together.
    if (checkpointer != nullptr && checkpointer->is_under_way() && result.written == model.context().fabric.size())
      while_saving([&] { checkpointer->commit(); });
  };
  for (std::int64_t step = options.first_step; step < run.train.steps && !stopped; ++step) {
    if (step == run.trace.first_step && run.trace.steps > 0) tracer.enable();
    options.enter(RunPhase::step, step + 1);
    options.before_step(step + 1);
    const double lr = optim::lr_at(run.lr, step + 1, run.train.steps);
    auto handle = model.submit_step(step, lr);
    take();
    open = {step, lr, handle};
    const bool last = step + 1 == run.train.steps || stopped;
    const bool due = run.train.validate_every > 0 && (step + 1) % run.train.validate_every == 0;
    const bool writes = step == options.first_step && !options.save_gradients.empty();
    const bool compares = run.check_replicas_every > 0 && (last || (step + 1) % run.check_replicas_every == 0);
    const bool saves = checkpointer != nullptr && (checkpointer->is_due(step + 1) || wants_save);
    if (last || due || writes || compares || saves) model.settle();
    if (!model.is_open()) take();
    if (compares) {
      model.drain();
      if (run.fault.kind == "diverge" && run.fault.rank == model.mesh().rank() && step + 1 >= run.fault.step)
        make_replicas_differ(model);
      check_replicas(model);
    }
    if (writes) {
      model.drain();
      save_tensors(model, &optim::ShardState::grad, 1.0 / static_cast<double>(handle.wait().tokens),
                   options.save_gradients);
    }
    if (saves || (wants_save && !model.is_open())) {
      wants_save = false;
      model.drain();
      while_saving([&] { checkpointer->begin(step + 1); });
    }
    if (step + 1 == run.trace.first_step + run.trace.steps) tracer.disable();
    if (!stopped && (last || due)) validate_now();
  }
  model.settle();
  take();
  model.drain();
  if (checkpointer != nullptr) {
    while_saving([&] {
      const auto done = results.summary.steps;
      const bool unsaved = done > options.first_step && done != checkpointer->last_begun();
      if ((stopped || checkpointer->saves_at_end()) && unsaved) checkpointer->begin(done, false);
      checkpointer->commit();
    });
  }
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
    out.wants_save = out.wants_save || result.save;
  }
  out.loss = loss / std::max(tokens, 1.0);
  return out;
}

}  // namespace orthant::launch
