// SPDX-License-Identifier: Apache-2.0
// index.json of a checkpoint: what was saved (global names and shapes, never a rank's own), which slice of it lies in
// which file, checksums taken from memory before it was written, and where the run stood. Any mesh reads what any other
// wrote. The text is canonical and carries its own checksum: a changed byte anywhere is found.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <orthant/core/base/dtype.hpp>
#include <orthant/core/shard/placement.hpp>

namespace orthant::ckpt {

inline constexpr std::int64_t kFormatVersion = 1;

/// What is saved of a parameter. One that never trains has a master alone.
enum class StateKind : std::uint8_t { master, exp_avg, exp_avg_sq };
inline constexpr std::array kStateKinds{StateKind::master, StateKind::exp_avg, StateKind::exp_avg_sq};
std::string_view name_of(StateKind kind);

/// A rectangle of a parameter (one row where that has one dim), in one file.
struct Slice {
  shard::Range rows, columns;
  std::int64_t file = 0;       ///< index into CheckpointIndex::files
  std::uint64_t checksum = 0;  ///< XXH64 of its bytes
  std::int64_t numel() const { return rows.length() * columns.length(); }
};

struct SavedTensor {
  DType type = DType::f32;
  std::vector<Slice> slices;  ///< tile the parameter
};

struct SavedParameter {
  shard::Shape shape;
  std::int64_t updates = 0;  ///< optimizer steps done
  std::map<StateKind, SavedTensor> tensors;
};

/// A safetensors file of one rank.
struct ShardFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t header = 0;  ///< checksum of all before the tensors
};

/// Where the run stood.
struct RunState {
  std::string run;           ///< id of the start that wrote it
  std::int64_t step = 0;     ///< steps done
  std::int64_t samples = 0;  ///< of the data order, done
  std::int64_t seed = 0;
  std::string mesh;    ///< as it was, in words; any other reads it
  std::string config;  ///< resolved, TOML
  std::uint64_t config_hash = 0;
  std::uint64_t data = 0;  ///< fingerprint of the training tokens
};

struct CheckpointIndex {
  RunState state;
  std::vector<ShardFile> files;
  std::map<std::string, SavedParameter> parameters;

  /// One JSON object and a newline.
  std::string text() const;
  /// Throws  CheckpointError (file `where`, what is wrong with it) unless everything in it is sound: checksum, version,
  ///         names of files, and slices that tile each parameter exactly.
  static CheckpointIndex parse(std::string_view text, const std::string& where);
};

/// "model.norm.weight.exp_avg[0:1,0:64]": how a slice is called in its file.
std::string entry_name(const std::string& parameter, StateKind kind, const Slice& slice);

/// What one rank has written, on its way to the index: the part of CheckpointIndex with one file, as text.
std::string part_text(const CheckpointIndex& part);
/// All ranks' parts as one; slices are renumbered to their files. Throws  CheckpointError unless they tile.
CheckpointIndex merge_parts(const RunState& state, std::span<const std::string> parts);

std::uint64_t checksum_of(std::span<const std::byte> bytes);

}  // namespace orthant::ckpt
