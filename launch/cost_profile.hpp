// SPDX-License-Identifier: Apache-2.0
// The cost profile of a run: how long each layer's F, I and W and a message between stages take. Written to
// profile.json in the run folder; read back with pipeline.profile, to split layers and to make and choose schedules.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <orthant/core/step/cost_recorder.hpp>
#include <orthant/launch/parallel_model.hpp>
#include <orthant/pipeline/cost/costs.hpp>

namespace orthant::launch {

struct CostProfile {
  std::vector<step::LayerCost> layers;  ///< 0 embedding, 1..L blocks, L+1 head
  double message_us = 0;                ///< one activation from stage to stage
};

/// What one message of `bytes` takes, by round trips over each pair of neighbouring pipeline ranks; 0 with one rank.
/// Collective over the pipeline, while nothing else runs. The same on all ranks.
double measure_message_us(const mesh::DeviceMesh& mesh, const mesh::PipelineTopology& topology, std::int64_t bytes,
                          std::chrono::milliseconds timeout);

/// What one micro-batch takes on a rank, collectives inside of layers included.
struct RankCost {
  std::string place;  ///< "pp0 dp1 tp0"
  int pp = 0;
  double us = 0;
};

struct MeasuredCosts {
  CostProfile profile;
  std::vector<RankCost> ranks;
};

/// What all ranks have measured, on every rank. Collective over the control group.
MeasuredCosts gather_costs(ParallelModel& model, double message_us);
/// How many times what the fastest rank with the same layers takes, by rank.
std::vector<double> over_fastest(const std::vector<RankCost>& ranks);
/// A line for each rank that takes much longer than another one with the same layers; a slow or busy host, most likely.
/// (Tensor-parallel ranks wait for each other inside of layers, so that all of a group look like its slowest.)
std::vector<std::string> describe_slow_ranks(const std::vector<RankCost>& ranks);

/// The profile: layers, sums for each stage, message, ranks.
std::string profile_json(const RunConfig& run, const PipelinePlan& plan, const MeasuredCosts& costs);

/// Throws  ConfigError when the file cannot be read, is no profile, or is of a model with another number of layers.
CostProfile read_profile(const std::filesystem::path& path, std::int64_t blocks);

/// Sums over the layers of each stage.
pipeline::Costs stage_costs(const CostProfile& profile, const std::vector<step::StageSpan>& stages);

}  // namespace orthant::launch
