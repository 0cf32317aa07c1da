// SPDX-License-Identifier: Apache-2.0
// A whole file, read-only, in memory by mmap: ranks of one host share its pages. The caller checks the content before
// use, and must not read on when the file has changed: a page that a shorter file no longer has ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

#include <sys/stat.h>

#include <orthant/core/base/atomic_file.hpp>

namespace orthant {

/// Owns a read-only mapping. An empty file gives an empty span.
class MappedFile {
 public:
  /// Throws  what `raise` throws if `path` is not a readable regular file.
  MappedFile(const std::filesystem::path& path, RaiseFileError raise);
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})), stamp_(other.stamp_) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(stamp_, other.stamp_);
    return *this;
  }
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  /// Whether the file, if it still is at `path`, is as it was when it was mapped. Another one in its place is no
  /// change: the mapping keeps the old one.
  bool is_unchanged(const std::filesystem::path& path) const;
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

 private:
  /// Which state of which file: two that are equal have the same bytes, as far as the file system tells.
  struct Stamp {
    std::uint64_t device = 0, inode = 0;
    std::int64_t size = 0, modified_s = 0, modified_ns = 0;
    bool operator==(const Stamp&) const = default;
  };
  static Stamp stamp_of(const struct stat& status);

  std::span<const std::byte> bytes_;
  Stamp stamp_;
};

}  // namespace orthant
