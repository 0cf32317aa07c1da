// SPDX-License-Identifier: Apache-2.0
// A file that appears whole or not at all: written under a temporary name beside its place, every write checked, fsync,
// rename, fsync of the folder. On a full disk fsync and close may still succeed after a failed write: only the writes
// themselves tell.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace orthant {

/// Throws the caller's kind of error: `raise_as<DataError>` in core/data, `raise_as<CheckpointError>` in core/ckpt.
using RaiseFileError = void (*)(const std::string& what);

template <class E>
[[noreturn]] void raise_as(const std::string& what) {
  throw E(what);
}

class AtomicFile {
 public:
  /// Opens a temporary file in the folder of `path`, which must exist. `mode` as for chmod(2).
  /// Throws  what `raise` throws; so do all methods.
  AtomicFile(std::filesystem::path path, unsigned mode, RaiseFileError raise);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  /// Without commit() the temporary file is removed and the old file stays.
  ~AtomicFile();

  /// Writes all of `bytes` at `offset`; what is skipped reads as zeros.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Writes all of `bytes` after the end of the last append().
  void append(std::span<const std::byte> bytes);
  /// Puts the file in its place, durably. Call once, last.
  void commit();

 private:
  [[noreturn]] void fail(const char* operation, int error) const;

  std::filesystem::path path_;
  std::string temporary_;
  int fd_ = -1;
  std::uint64_t end_ = 0;
  RaiseFileError raise_;
};

/// Makes what was created, renamed or removed in a folder survive a loss of power.
void flush_folder(const std::filesystem::path& folder, RaiseFileError raise);

/// Writes `text` to `path` atomically.
void write_text_file(const std::filesystem::path& path, std::string_view text, RaiseFileError raise,
                     unsigned mode = 0644);

}  // namespace orthant
