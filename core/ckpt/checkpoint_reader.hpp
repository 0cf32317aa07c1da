// SPDX-License-Identifier: Apache-2.0
// Reads a committed checkpoint: any rectangle of any parameter, from whatever slices it lies in. Each slice is checked
// against the index before the first of its bytes is used.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <orthant/core/ckpt/checkpoint_index.hpp>
#include <orthant/core/ckpt/safetensors_file.hpp>

namespace orthant::ckpt {

class CheckpointReader {
 public:
  /// Reads folder/index.json.
  /// Throws  CheckpointError, as all functions do.
  explicit CheckpointReader(std::filesystem::path folder);

  const CheckpointIndex& index() const { return index_; }
  const std::filesystem::path& folder() const { return folder_; }
  /// Hash of the index, and so of everything.
  std::uint64_t identity() const { return identity_; }

  /// Fills `out`, row by row, with a rectangle of a parameter in the type that the index has for it. Every element is
  /// read from exactly one slice.
  void read(const std::string& parameter, StateKind kind, shard::Range rows, shard::Range columns,
            std::span<std::byte> out);

  /// Checks every file and every slice. Returns what is wrong, one line each, naming file, parameter and slice; empty:
  /// nothing.
  std::vector<std::string> verify();

 private:
  const SafetensorsFile& file(std::int64_t number);
  std::span<const std::byte> checked(const std::string& parameter, StateKind kind, const SavedParameter& saved,
                                     const Slice& slice);

  std::filesystem::path folder_;
  CheckpointIndex index_;
  std::uint64_t identity_ = 0;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;     ///< opened when first asked for
  std::set<std::pair<std::int64_t, std::string>> checked_;  ///< (file, entry)
};

}  // namespace orthant::ckpt
