// SPDX-License-Identifier: Apache-2.0
// The training loop: submit a step, take its result from its handle, validate, save, report, drain. The result is known
// before the optimizer has run, so the next step is submitted while this one ends.
#pragma once

#include <functional>
#include <optional>

#include <orthant/launch/checkpointer.hpp>
#include <orthant/launch/goodput.hpp>
#include <orthant/launch/parallel_model.hpp>
#include <orthant/launch/progress.hpp>
#include <orthant/launch/run_folder.hpp>
#include <orthant/launch/watchdog/run_phase.hpp>

namespace orthant::launch {

struct TrainerOptions {
  std::int64_t first_step = 0;          ///< steps done already, by an earlier start
  std::int64_t validation_batches = 0;  ///< 0: no validation data
  std::string save_gradients;  ///< file for the first step's gradients (of the mean loss, before clipping); empty: none
  Checkpointer* checkpointer = nullptr;  ///< null: nothing is saved
  RunFolder* folder = nullptr;           ///< on the rank that writes, as the next
  Ledger* ledger = nullptr;
  Progress* progress = nullptr;
  std::function<void(RunPhase, std::int64_t step)> enter = [](RunPhase, std::int64_t) {};  ///< told to the watchdog
  std::function<void(std::int64_t step)> before_step = [](std::int64_t) {};                ///< a drill; counted from 1
};

struct TrainSummary {
  std::int64_t steps = 0;          ///< done, those of earlier starts too
  std::int64_t skipped_steps = 0;  ///< of this start's, because they were not finite
  std::int64_t copy_bytes = 0;     ///< of post-validation, on this rank; 0: it was never on
  bool stopped = false;            ///< on request, before the last step
  double last_loss = 0;
  std::optional<double> first_validation_loss;
  std::optional<double> last_validation_loss;
  double tokens_per_s = 0;  ///< over all ranks, median step without the first three
};

/// Trains to run.train.steps, and saves as the checkpointer's config says, at the end or when asked to stop, too.
/// Collective over all ranks.
/// Throws  NonFiniteError naming the step; CheckpointError when saves fail too often; whatever the scheduler throws.
TrainSummary train(ParallelModel& model, const TrainerOptions& options);

struct ValidationResult {
  double loss = 0;          ///< token-weighted mean
  bool stopped = false;     ///< on request, before the last batch: the loss is not of the whole set
  bool wants_save = false;  ///< a rank voted for a checkpoint meanwhile, which it does once
};

/// Over the validation set. Collective over all ranks.
ValidationResult validate(ParallelModel& model, std::int64_t batches);

}  // namespace orthant::launch
