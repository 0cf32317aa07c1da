// SPDX-License-Identifier: Apache-2.0
// Between a rank's shards and a checkpoint: what this rank writes of masters, moments and counts of updates, and how it
// fills its slices from what any mesh has written.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <orthant/core/ckpt/checkpoint_reader.hpp>
#include <orthant/core/ckpt/shard_writer.hpp>
#include <orthant/launch/parallel_model.hpp>

namespace orthant::launch {

/// A piece to be written, without its bytes, and where they are: a contiguous part of a shard's tensor.
struct OwnedPiece {
  ckpt::StatePiece piece;
  at::Tensor elements;
};

/// What this rank writes: of every replica group one rank writes, so that all ranks' pieces tile every parameter. Only
/// after drain(); `updates` counts until then.
std::vector<OwnedPiece> owned_pieces(ParallelModel& model);

/// Fills this rank's masters, moments, counts and weights. Nothing is missing afterwards: every element that the rank
/// holds was read once. Moments of a parameter that has none in the checkpoint (it did not train) are zero.
/// Throws  CheckpointError naming every parameter that is missing, unexpected or of another shape; whatever `reader`
///         finds damaged.
void load_state(ParallelModel& model, ckpt::CheckpointReader& reader);

}  // namespace orthant::launch
