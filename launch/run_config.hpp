// SPDX-License-Identifier: Apache-2.0
// The whole configuration of a run: one struct a TOML table, read strictly (an unknown key, a wrong type or a rule that
// does not hold is an error), every fault reported at once. What is inferred (a mesh axis of 0, the vocabulary) is
// settled here, so that the resolved text alone reproduces the run.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <orthant/core/base/dtype.hpp>
#include <orthant/core/config/reader.hpp>
#include <orthant/core/model/model_config.hpp>
#include <orthant/core/optim/lr_schedule.hpp>
#include <orthant/core/optim/optimizer.hpp>
#include <orthant/core/step/llama_program.hpp>
#include <orthant/core/train/stage_layout.hpp>
#include <orthant/mesh/mesh_shape.hpp>

namespace orthant::launch {

struct MeshConfig {
  int pp = 1;
  int dp = 1;
  int tp = 1;
  int dp_shard = 0;  ///< ranks that share one copy of the optimizer state; 0: all dp
  std::int64_t world() const { return std::int64_t{pp} * dp * tp; }
};

struct TrainConfig {
  std::int64_t steps = 100;
  std::int64_t global_batch = 8;  ///< sequences a step, over all ranks
  std::int64_t micro_batch = 1;   ///< sequences a forward
  std::int64_t seq_len = 256;
  std::uint64_t seed = 1;
  DType precision = DType::f32;
  double grad_clip = 1.0;           ///< 0: off
  std::int64_t validate_every = 0;  ///< steps; 0: at the end only
  /// Blocks that keep their input and run forward again. none; full: all; first: so many of each pipeline rank; auto:
  /// as few as fit. selected: all keep everything but the results of some operations.
  std::string checkpoint_activations = "none";
  std::int64_t checkpoint_layers = 1;            ///< first
  std::vector<std::string> checkpoint_ops = {};  ///< selected: attention, mlp
  std::int64_t max_skipped_steps = 0;            ///< steps in a row that may be left out because they are not finite
  std::int64_t log_every = 10;
  std::vector<std::string> freeze =
      {};                         ///< units without gradient, state and decay: embedding, head, norms, layers.A-B
  std::int64_t freeze_steps = 0;  ///< how many steps `freeze` holds; 0: all
};

struct DataConfig {
  std::string train;
  std::string validation;  ///< empty: none
  bool shuffle = true;
};

struct FsdpConfig {
  /// Sharded are, 0: nothing (folder dp); 1: the optimizer; 2: gradients, too; 3: weights, too.
  int stage = 3;
  std::string residency = "auto";      ///< of weights in stage 3: layer, chunk; auto: chunk when pp > 1, else layer
  std::string reduce = "auto";         ///< each_microbatch, last_microbatch; auto: what the stage and residency suit
  DType reduce_dtype = DType::f32;     ///< of gradients on the wire; sums are fp32
  bool shared_stream = false;          ///< gathers and reductions follow each other on one stream
  bool reshard_after_forward = false;  ///< chunk: free and gather again stages that are not among the next ones
  int resident_stages = 2;             ///< with reshard_after_forward: how many stages of a rank are gathered at once
};

struct PipelineConfig {
  std::string schedule = "1f1b";         ///< a name, "file:PATH.csv", or "auto": the fastest by the profile
  std::string profile;                   ///< profile.json of an earlier run: costs for splitting, generating, choosing
  int chunks = 0;                        ///< stages a rank; 0: what the schedule wants
  std::vector<int> layers_per_stage;     ///< blocks; empty: split by cost
  double memory_limit = 0;               ///< zb_search, auto: activations a rank may hold, in micro-batches; 0: pp
  std::string post_validation = "auto";  ///< on, off; auto: on after ten unclipped steps
};

struct CheckpointConfig {
  struct Resume {
    bool never = false;
    std::int64_t step = -1;  ///< this very one; -1: the newest sound one
  };
  std::string dir;            ///< empty: checkpoints/ in run.dir
  std::int64_t interval = 0;  ///< steps; 0: only when the run is asked to stop
  bool automatic = false;     ///< interval = "auto": from what a save takes and from mtbf_hours
  double mtbf_hours = 24;     ///< mean time between failures of the whole run
  std::int64_t keep = 3;      ///< newest steps that stay
  Resume resume;
  bool background = true;         ///< a snapshot is written while training goes on; false: training waits
  std::int64_t max_failures = 3;  ///< saves in a row that may fail before the run ends
  std::vector<std::string> accept_changes = {};  ///< keys that may differ from the run that is gone on with
};

/// A fault to inject, for drills and tests; announced in the log.
struct FaultConfig {
  std::string kind = "none";   ///< as fault_kinds()
  int rank = 0;                ///< -1: one chosen by the seed
  std::int64_t step = 1;       ///< counted from 1, as in progress and metrics; 0: one chosen by the seed
  std::string phase = "step";  ///< of throw, kill, stop, slow and the signals: as name_of(RunPhase)
  std::int64_t times = 1;      ///< in so many steps from `step` on; 0: in all of them
  std::int64_t seed = 1;
  std::int64_t delay_ms = 200;  ///< slow
  std::string group = "stage";  ///< skip: the communicator whose next operation this rank leaves out
};

/// Longest time without anything finishing, in seconds; 0: timeout_s.
struct TimeoutConfig {
  std::int64_t init_s = 0, load_s = 0, step_s = 0, evaluation_s = 0, save_s = 0, exit_s = 0;
};

/// device.kind = "emulated": what the devices are to take.
struct EmulatedConfig {
  std::vector<double> costs_ms = {10, 10, 10};  ///< F, I and W of a stage and micro-batch
  double latency_ms = 0;                        ///< of a link between two ranks
  double megabytes_per_s = 0;                   ///< of a link; 0: without a limit
};

struct TraceConfig {
  std::int64_t first_step = 0;
  std::int64_t steps = 0;  ///< 0: no trace.json
};

/// [optimizer.embedding], [optimizer.blocks], [optimizer.head], [optimizer.norms]
struct OptimizerGroup {
  double lr_scale = 1.0;
  std::optional<double> weight_decay = {};  ///< none: the optimizer's, for matrices
};

struct RunConfig {
  model::ModelConfig model;
  MeshConfig mesh;
  TrainConfig train;
  FsdpConfig fsdp;
  bool sequence_parallel = true;            ///< [tp]; no effect with tp = 1
  bool keep_gathered = false;               ///< [tp] as TpOptions
  int gather_pieces = 1;                    ///< [tp] as TpOptions
  std::int64_t check_replicas_every = 100;  ///< [tp] steps between comparisons of what ranks hold alike; 0: never
  PipelineConfig pipeline;
  std::int64_t bucket_bytes = 25 << 20;  ///< [dp]
  optim::OptimizerOptions optimizer;
  DType moments = DType::f32;            ///< of the optimizer: bf16, or the master's type
  std::int64_t memory_limit = 0;         ///< [memory] of a rank, in bytes; 0: its share of what the host has free
  std::array<OptimizerGroup, 4> groups;  ///< by shard::UnitKind
  optim::LrSchedule lr;
  DataConfig data;
  TraceConfig trace;
  CheckpointConfig checkpoint;
  FaultConfig fault;
  TimeoutConfig timeouts;  ///< [comm]
  std::string device = "cpu";
  EmulatedConfig emulated;               ///< [device]
  std::int64_t timeout_s = 600;          ///< [comm] longest time in which nothing at all finishes
  std::string run_dir = "runs/default";  ///< [run] a numbered folder is made in it

  std::string resolved;  ///< TOML

  std::int64_t microbatches() const { return train.global_batch / (mesh.dp * train.micro_batch); }
  /// Number of a micro-batch's first sample among those of a global batch: data-parallel rank r has the r-th contiguous
  /// share.
  std::int64_t first_sample(int dp_rank, MicrobatchId microbatch) const {
    return dp_rank * (train.global_batch / mesh.dp) + microbatch.value * train.micro_batch;
  }
  /// What takes turns in two buffers.
  train::Residencies residencies() const;
  mesh::MeshShape mesh_shape() const;
  /// Of a unit of that kind; block  number of the block that a block or norms are of, -1 of others.
  step::UnitPolicy unit_policy(shard::UnitKind kind, std::int64_t block) const;
  /// Of every pipeline rank; with "auto" no block, until the memory plan has chosen.
  step::Checkpoint activation_checkpoint() const;
};

/// Reads a config for `world` ranks. Opens the token files' headers (for the vocabulary), allocates nothing large.
/// Throws  ConfigError with every fault, one a line; DataError when a token file cannot be read.
RunConfig read_run_config(const std::filesystem::path& path, const std::vector<std::string>& overrides, int world);

/// The same for a document already parsed; `vocab_of_data` 0 when the token files are not looked at (tests).
RunConfig parse_run_config(config::ConfigDocument document, int world, std::int64_t vocab_of_data);

}  // namespace orthant::launch
