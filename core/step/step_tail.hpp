// SPDX-License-Identifier: Apache-2.0
// The end of a step as tasks: NORM_UNITS (norm gradients: sum over tp under sequence parallel), TIE (gradients of a
// weight that lives at both ends of the pipeline), NORM (loss and gradient norm over all ranks, fp64, every logical
// parameter once), STEP (clip and optimizer, unit by unit). Division by the number of tokens happens here, once.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <orthant/core/comm/lane.hpp>
#include <orthant/core/optim/optimizer.hpp>
#include <orthant/core/shard/parameter_table.hpp>
#include <orthant/core/step/llama_program.hpp>
#include <orthant/core/stream/scheduler.hpp>
#include <orthant/core/train/param_lifecycle.hpp>
#include <orthant/core/train/shard_store.hpp>

namespace orthant::step {

/// What a step gave; valid once its handle was waited for.
struct StepResult {
  double loss = 0;       ///< mean over the global batch's valid tokens
  double grad_norm = 0;  ///< of that mean's gradient, before clipping
  std::int64_t tokens = 0;
  bool stop = false;  ///< some rank was asked to stop; the same on all ranks
};

/// The result of a submitted step: wait() before reading.
class [[nodiscard]] StepHandle {
 public:
  StepHandle(stream::Scheduler& scheduler, stream::TaskId task, std::shared_ptr<StepResult> result)
      : scheduler_(&scheduler), task_(task), result_(std::move(result)) {}
  /// Blocks until loss and norm are known on this rank (the optimizer may still run). Throws what the scheduler throws.
  const StepResult& wait() {
    scheduler_->wait(task_);
    return *result_;
  }

 private:
  stream::Scheduler* scheduler_;
  stream::TaskId task_;
  std::shared_ptr<StepResult> result_;
};

struct TailLanes {
  stream::StreamId compute;
  comm::Lane tp;
  comm::Lane tie;  ///< unused (null) with one stage
  comm::Lane world;
};

struct TailOptions {
  double grad_clip = 1.0;                                       ///< 0: off
  bool counts_loss = true;                                      ///< one rank of those that computed the same loss
  std::function<bool()> stop_requested = [] { return false; };  ///< asked once a step
};

class StepTail {
 public:
  StepTail(stream::Scheduler& scheduler, TailLanes lanes, const shard::ParameterTable& table, train::GradSync& sync,
           train::ShardStore& store, optim::Optimizer& optimizer, LlamaProgram& program, TailOptions options);

  void norm_units();
  void tie();
  StepHandle norm();
  /// step  0-based; lr of this step.
  void update(std::int64_t step, double lr);
  /// Loss alone, of a forward-only pass.
  StepHandle loss_only();

 private:
  void all_reduce_gradient(optim::ShardState& shard, comm::Lane lane, const char* what);
  StepHandle reduce_stats(std::vector<stream::Claim> reads, bool with_gradients);

  stream::Scheduler& scheduler_;
  TailLanes lanes_;
  const shard::ParameterTable& table_;
  train::GradSync& sync_;
  train::ShardStore& store_;
  optim::Optimizer& optimizer_;
  LlamaProgram& program_;
  TailOptions options_;

  struct Stats {  ///< as summed over all ranks
    double loss_sum = 0;
    double tokens = 0;
    double sum_of_squares = 0;
    double stops = 0;
  };
  Stats stats_;
  stream::BufferId stats_buffer_;
  std::int64_t serial_ = 0;
};

}  // namespace orthant::step
