// SPDX-License-Identifier: Apache-2.0
// Reads safetensors: u64 length of the header, a JSON header {"name": {dtype, shape, data_offsets}, …}, then the bytes.
// The file may come from anywhere, so all of the header is checked before anything is used: nothing in it can make a
// read leave the file. Source: github.com/huggingface/safetensors, README "Format".
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <orthant/core/base/dtype.hpp>
#include <orthant/core/base/mapped_file.hpp>

namespace orthant::ckpt {

/// One tensor of a file. `bytes` is a view into the file's mapping: little-endian, row-major, at any alignment.
struct TensorView {
  std::string dtype;  ///< as the format names it: "BF16"
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

/// A safetensors file, mapped. Move-only; views live as long as it does.
class SafetensorsFile {
 public:
  /// Throws  CheckpointError (file and what is wrong with it) unless the whole header is sound: its length fits the
  /// file, JSON
  ///         without duplicate keys, known dtypes, shapes that fit their bytes, and byte ranges that cover the rest
  ///         without holes or overlaps.
  explicit SafetensorsFile(std::filesystem::path path);

  const std::map<std::string, TensorView>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool contains(std::string_view name) const { return tensors_.contains(std::string(name)); }
  /// Throws  CheckpointError if there is none of that name.
  const TensorView& at(std::string_view name) const;
  /// The tensor's element type as Orthant has it.
  /// Throws  CheckpointError if there is no such tensor or Orthant has no such type.
  DType dtype(std::string_view name) const;
  const std::filesystem::path& path() const { return path_; }
  /// Everything before the tensors' bytes.
  std::span<const std::byte> header() const;
  std::uint64_t size() const;  ///< of the file, bytes

 private:
  void read_header(std::string_view header, std::span<const std::byte> data);
  [[noreturn]] void fail(const std::string& why) const;

  std::filesystem::path path_;
  MappedFile file_;
  std::size_t header_bytes_ = 0;
  std::map<std::string, TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace orthant::ckpt
