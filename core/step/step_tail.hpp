// SPDX-License-Identifier: Apache-2.0
// The end of a step as tasks: NORM_UNITS (norm gradients), PARTIAL (gradients of what several
// tensor-parallel ranks hold, each of which has one term of the sum), TIE (gradients of
// weights that several pipeline ranks hold), NORM (loss and gradient norm over all ranks, fp64, every logical parameter
// once), STEP (clip and optimizer, unit by unit). Division by the number of tokens happens here, once. NORM comes in
// two forms that give the same bits: a barrier, or post-validation (decisions/post_validation.md), with which the next
// step begins before the last rank's norm is known. Source: Qi et al. 2024 (Zero Bubble Pipeline Parallelism),
// section 4.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <orthant/core/comm/lane.hpp>
#include <orthant/core/optim/optimizer.hpp>
#include <orthant/core/shard/slice_ranges.hpp>
#include <orthant/core/step/llama_program.hpp>
#include <orthant/core/step/shard_copies.hpp>
#include <orthant/core/step/votes.hpp>
#include <orthant/core/stream/scheduler.hpp>
#include <orthant/core/train/param_lifecycle.hpp>
#include <orthant/core/train/shard_store.hpp>

namespace orthant::step {

/// What a step gave; valid once its handle was waited for.
struct StepResult {
  double loss = 0;       ///< mean over the global batch's valid tokens
  double grad_norm = 0;  ///< of that mean's gradient, before clipping
  std::int64_t tokens = 0;
  bool finite = true;                ///< false: loss or norm is not, and the step changed no weight on any rank
  bool clipped = false;              ///< the norm was above the limit
  bool stop = false;                 ///< some rank was asked to stop; the same on all ranks
  bool save = false;                 ///< some rank wants a checkpoint; the same on all ranks
  std::int64_t written = 0;          ///< ranks whose part of a checkpoint is on disk; the same on all ranks
  std::string non_finite_here = {};  ///< the first parameter whose gradient is not finite in this rank's slices
};

/// The result of a submitted step: wait() before reading.
class [[nodiscard]] StepHandle {
 public:
  StepHandle(stream::Scheduler& scheduler, stream::TaskId task, std::shared_ptr<StepResult> result)
      : scheduler_(&scheduler), task_(task), result_(std::move(result)) {}
  /// Blocks until loss and norm are known on this rank (the optimizer may still run). Throws what the scheduler throws.
  const StepResult& wait() const {
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
  comm::Lane tp_share;           ///< ranks with the same key/value heads; null where that is one rank or all
  comm::Lane tie;                ///< unused (null) where no weight is held twice
  comm::Lane stage;              ///< ranks of this pipeline coordinate
  comm::Lane pp;                 ///< ranks along the pipeline
  comm::ChannelLane prefix_in;   ///< from the pipeline rank before; null on the first
  comm::ChannelLane prefix_out;  ///< to the one after; null on the last
};

struct TailOptions {
  double grad_clip = 1.0;                                 ///< 0: off
  bool counts_loss = true;                                ///< one rank of those that computed the same loss
  std::function<Votes()> votes = [] { return Votes{}; };  ///< asked once a step
  /// A drill: what becomes of some of this rank's gradients in that step (0-based); 0: nothing.
  std::function<double(std::int64_t step)> poison = [](std::int64_t) { return 0.0; };
};

/// When the optimizer may run.
enum class NormMode : std::uint8_t {
  barrier,          ///< once loss and norm of all ranks are known
  post_validation,  ///< once those of the ranks before are; settle() corrects what was too early
};

class StepTail {
 public:
  StepTail(stream::Scheduler& scheduler, TailLanes lanes, const shard::ParameterTable& table, train::GradSync& sync,
           train::ShardStore& store, optim::Optimizer& optimizer, LlamaProgram& program, TailOptions options);

  /// The first of a step's calls. step  0-based.
  void norm_units(std::int64_t step);
  void tie();
  StepHandle norm(NormMode mode);
  /// The optimizer, with what the last norm() found.
  void update(double lr);
  /// Loss alone, of a forward-only pass.
  StepHandle loss_only();

  /// Whether update() ran ahead of the norm and settle() is due.
  bool is_open() const { return open_; }
  /// Waits for the whole norm. True if the optimizer was right to run ahead; false if it was not: then the weights from
  /// before were restored exactly, the step was done again with clipping (or left out, if it is not finite), and
  /// whatever read the weights since update() must be done again. Collective over the pipeline: the same answer on all
  /// ranks.
  bool settle();
  /// Bytes of the copies that post-validation keeps; 0 before its first step.
  std::int64_t copy_bytes() const { return copies_.bytes(); }

 private:
  struct Stats {  ///< of this rank, then of its stage, then of the pipeline
    double loss_sum = 0;
    double sum_of_squares = 0;
    double stops = 0, saves = 0, written = 0;  ///< votes
    double tokens = 0;                         ///< every stage counts them all: not summed over the pipeline
  };
  /// All but the tokens: what is summed over the pipeline.
  static comm::Span over_pipeline(Stats& stats) { return {&stats, sizeof(Stats) / sizeof(double) - 1, DType::f64}; }

  void all_reduce_gradient(optim::ShardState& shard, shard::Range range, comm::Lane lane, const char* what);
  void sum_partial_gradients();
  bool trains(const optim::ShardState& shard) const { return table_.unit(shard.unit).trains_in(training_step_); }
  void sum_over_stage(std::vector<stream::Claim> reads, bool with_gradients);
  void add_sum_of_squares(std::int64_t step);
  void sum_over_pipeline();
  void sum_up_to_here();
  StepHandle result(stream::Claim source, const Stats& stats);
  StepResult judge(const Stats& stats) const;
  double scale(const StepResult& verdict) const;
  void step_each(const char* name, bool again, std::function<void(optim::ShardState&)> body);

  stream::Scheduler& scheduler_;
  TailLanes lanes_;
  const shard::ParameterTable& table_;
  train::GradSync& sync_;
  train::ShardStore& store_;
  optim::Optimizer& optimizer_;
  LlamaProgram& program_;
  TailOptions options_;
  ShardCopies copies_;

  struct SliceRanges {
    shard::Range whole;
    std::vector<shard::Range> owned;
    std::vector<shard::PartialRange> partial;
  };
  std::vector<SliceRanges> ranges_;  ///< by shard of the store

  std::string non_finite_;  ///< as StepResult::non_finite_here, of the last NORM
  Stats stage_;             ///< this rank's, then its stage's
  Stats known_;             ///< what the optimizer goes by: of the whole pipeline, or of the ranks up to this one
  Stats before_;            ///< post-validation: of the ranks before this one
  Stats whole_;             ///< post-validation: of the whole pipeline, later
  stream::BufferId stage_buffer_, known_buffer_, before_buffer_, whole_buffer_;
  std::int64_t serial_ = 0;
  NormMode mode_ = NormMode::barrier;
  bool open_ = false;
  double lr_ = 0;
  std::int64_t training_step_ = 0;    ///< of norm_units(); the engines may have begun the next when settle() comes
  std::optional<StepHandle> handle_;  ///< of the step that is open
};

}  // namespace orthant::step
