// SPDX-License-Identifier: Apache-2.0
// Writes safetensors: the header comes from names and shapes alone, so tensors can be gathered and written one at a
// time, in any order, and a large model need never be whole in memory. The file appears at the end, whole, readable by
// its owner only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <orthant/core/base/atomic_file.hpp>
#include <orthant/core/base/dtype.hpp>

namespace orthant::ckpt {

struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
};

class SafetensorsWriter {
 public:
  /// metadata  goes into the header beside {"format": "pt"}, which older readers need.
  /// Throws  CheckpointError, as all methods do: a name that is empty, reserved, not UTF-8 or there twice; a failed
  /// write.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> tensors,
                    std::map<std::string, std::string> metadata = {});

  /// Writes all of one tensor, little-endian and row-major. Each exactly once, in any order.
  void write(std::string_view name, std::span<const std::byte> bytes);
  /// Puts the file in its place, durably. Call once, last, when every tensor is written; without it there is no file.
  void finish();

  const std::string& header() const { return header_; }  ///< everything before the tensors' bytes
  std::uint64_t size() const { return size_; }           ///< of the whole file, bytes

 private:
  struct Place {
    std::uint64_t offset = 0;  ///< in the file
    std::uint64_t bytes = 0;
    bool written = false;
  };

  std::filesystem::path path_;
  std::map<std::string, Place> places_;
  std::string header_;
  std::uint64_t size_ = 0;
  AtomicFile file_;
};

struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

/// Writes all of `entries` at once.
/// Throws  CheckpointError.
void write_safetensors(const std::filesystem::path& path, const std::vector<TensorEntry>& entries,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace orthant::ckpt
