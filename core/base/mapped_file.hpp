// SPDX-License-Identifier: Apache-2.0
// A whole file, read-only, in memory by mmap: ranks of one host share its pages. The caller checks the content before
// use.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

#include <orthant/core/base/atomic_file.hpp>

namespace orthant {

/// Owns a read-only mapping. An empty file gives an empty span.
class MappedFile {
 public:
  /// Throws  what `raise` throws if `path` is not a readable regular file.
  MappedFile(const std::filesystem::path& path, RaiseFileError raise);
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace orthant
