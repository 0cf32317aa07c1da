// SPDX-License-Identifier: Apache-2.0
// The whole configuration of a run: one struct a TOML table, read strictly (an unknown key, a wrong type or a rule that
// does not hold is an error), every fault reported at once. What is inferred (a mesh axis of 0, the vocabulary) is
// settled here, so that the resolved text alone reproduces the run.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <orthant/core/base/dtype.hpp>
#include <orthant/core/config/reader.hpp>
#include <orthant/core/model/model_config.hpp>
#include <orthant/core/optim/lr_schedule.hpp>
#include <orthant/core/optim/optimizer.hpp>

namespace orthant::launch {

struct MeshConfig {
  int pp = 1;
  int dp = 1;
  int tp = 1;
  std::int64_t world() const { return std::int64_t{pp} * dp * tp; }
};

struct TrainConfig {
  std::int64_t steps = 100;
  std::int64_t global_batch = 8;  ///< sequences a step, over all ranks
  std::int64_t micro_batch = 1;   ///< sequences a forward
  std::int64_t seq_len = 256;
  std::uint64_t seed = 1;
  DType precision = DType::f32;
  double grad_clip = 1.0;                       ///< 0: off
  std::int64_t validate_every = 0;              ///< steps; 0: at the end only
  std::string checkpoint_activations = "none";  ///< none; full: blocks keep their input and run forward again
  std::int64_t max_skipped_steps = 0;           ///< steps in a row that may be left out because they are not finite
  std::int64_t log_every = 10;
};

struct DataConfig {
  std::string train;
  std::string validation;  ///< empty: none
  bool shuffle = true;
};

struct FsdpConfig {
  int stage =
      3;  ///< 0: replicated weights (folder dp); 1: optimizer sharded, weights gathered once a step; 3: everything
  std::string residency = "auto";      ///< layer, chunk; auto: chunk when pp > 1, else layer
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

/// A fault to inject, for drills and tests; announced in the log.
struct FaultConfig {
  std::string kind = "none";  ///< none, throw, kill, infinity (in the gradients)
  int rank = 0;
  std::int64_t step = 1;  ///< counted from 1, as in progress and metrics
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

struct RunConfig {
  model::ModelConfig model;
  MeshConfig mesh;
  TrainConfig train;
  FsdpConfig fsdp;
  bool sequence_parallel = true;  ///< [tp]; no effect with tp = 1
  PipelineConfig pipeline;
  std::int64_t bucket_bytes = 25 << 20;  ///< [dp]
  optim::OptimizerOptions optimizer;
  optim::LrSchedule lr;
  DataConfig data;
  TraceConfig trace;
  FaultConfig fault;
  std::string device = "cpu";
  EmulatedConfig emulated;               ///< [device]
  std::int64_t timeout_s = 600;          ///< [comm] longest time in which nothing at all finishes
  std::string run_dir = "runs/default";  ///< [run] a numbered folder is made in it

  std::string resolved;  ///< TOML

  std::int64_t microbatches() const { return train.global_batch / (mesh.dp * train.micro_batch); }
  bool layer_residency() const {
    return fsdp.stage == 3 && (fsdp.residency == "layer" || (fsdp.residency == "auto" && mesh.pp == 1));
  }
};

/// Reads a config for `world` ranks. Opens the token files' headers (for the vocabulary), allocates nothing large.
/// Throws  ConfigError with every fault, one a line; DataError when a token file cannot be read.
RunConfig read_run_config(const std::filesystem::path& path, const std::vector<std::string>& overrides, int world);

/// The same for a document already parsed; `vocab_of_data` 0 when the token files are not looked at (tests).
RunConfig parse_run_config(config::ConfigDocument document, int world, std::int64_t vocab_of_data);

}  // namespace orthant::launch
