// SPDX-License-Identifier: Apache-2.0
// One rank's file of a checkpoint. Checksums are taken from memory while it is written, so what the disk or the network
// changes on the way is found at loading.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <orthant/core/ckpt/checkpoint_index.hpp>

namespace orthant::ckpt {

/// A slice of a parameter's state, row by row. View: the bytes are the caller's.
struct StatePiece {
  std::string parameter;
  StateKind kind = StateKind::master;
  shard::Shape shape;  ///< of the whole parameter
  std::int64_t updates = 0;
  DType type = DType::f32;
  shard::Range rows, columns;
  std::span<const std::byte> bytes;
};

/// Writes `pieces` to `folder`/rank-NNNNN.safetensors, durably; without pieces no file.
/// Returns  the part of the index that they are.
/// Throws   CheckpointError; then the file is not there.
CheckpointIndex write_shard(const std::filesystem::path& folder, int rank, const RunState& state,
                            const std::vector<StatePiece>& pieces);

}  // namespace orthant::ckpt
