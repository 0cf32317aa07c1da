// SPDX-License-Identifier: Apache-2.0
// Whole tensors by global name, gathered from whatever mesh holds them, and weight files (safetensors) that any mesh
// reads.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <orthant/launch/parallel_model.hpp>

namespace orthant::launch {

/// Every logical parameter of the whole model, in the model's order: the table that one rank without any parallelism
/// would have.
std::vector<shard::LogicalParameter> logical_parameters(const model::ModelConfig& config);

/// Which of a shard's tensors: optim::ShardState::master, ::grad, …
using ShardTensor = at::Tensor optim::ShardState::*;

/// Calls `take(name, tensor)` on every rank for every logical parameter of the model, in the model's order, with the
/// whole tensor (global shape, fp32 or fp64). One parameter at a time is whole in memory. Collective over all ranks;
/// the caller has drained the model.
void gather_parameters(ParallelModel& model, ShardTensor which,
                       const std::function<void(const std::string&, const at::Tensor&)>& take);

/// Writes one of the shards' tensors, times `scale`, as fp32 (fp64 when training in it) safetensors with Hugging Face's
/// Llama names: the master weights, or gradients. Rank 0 writes. Collective over all ranks. Throws  CheckpointError on
/// rank 0 when the file cannot be written; nothing is left half-written.
void save_tensors(ParallelModel& model, ShardTensor which, double scale, const std::filesystem::path& path);

inline void save_weights(ParallelModel& model, const std::filesystem::path& path) {
  save_tensors(model, &optim::ShardState::master, 1.0, path);
}

/// Fills this rank's slices from a weight file; each rank reads what it owns.
/// Throws  CheckpointError naming every parameter that is missing, unexpected, or has another shape or type.
void load_weights(ParallelModel& model, const std::filesystem::path& path);

}  // namespace orthant::launch
