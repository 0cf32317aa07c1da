// SPDX-License-Identifier: Apache-2.0
// Tokens on disk, used in place by mmap. Layout, all little-endian: 64-byte header, then `count` ids of `width` bytes.
//   0 magic "ORTHTOKS" · 8 version u32 · 12 width u32 (2 or 4) · 16 vocab u64 · 24 count u64 · 32 xxhash64 of the ids
//   u64 · 40 zeros
// A file is checked when opened, its ids when read, its hash by verify().
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include <orthant/core/base/atomic_file.hpp>
#include <orthant/core/base/mapped_file.hpp>

struct XXH64_state_s;

namespace orthant::data {

/// Writes a token file piece by piece; nothing is in place before finish().
class TokenFileWriter {
 public:
  /// vocab_size  <= 65536 gives 2 bytes a token, else 4.
  /// Throws  DataError, as all methods do.
  TokenFileWriter(const std::filesystem::path& path, std::int64_t vocab_size);
  TokenFileWriter(TokenFileWriter&&) noexcept;
  ~TokenFileWriter();

  /// Throws  DataError for an id outside the vocabulary, and for a failed write.
  void append(std::span<const std::int32_t> tokens);
  /// Puts the file in its place. Call once, last.
  void finish();

 private:
  AtomicFile file_;
  std::unique_ptr<XXH64_state_s, void (*)(XXH64_state_s*)> hash_;
  std::int64_t vocab_size_;
  std::int64_t count_ = 0;
};

/// A token file, mapped. Move-only.
class TokenFile {
 public:
  /// Throws  DataError if magic, version, width or size is not right.
  explicit TokenFile(std::filesystem::path path);

  std::int64_t size() const { return count_; }  ///< tokens
  std::int64_t vocab_size() const { return vocab_size_; }
  const std::filesystem::path& path() const { return path_; }
  /// xxhash64 of the ids, as the header has it.
  std::uint64_t fingerprint() const { return fingerprint_; }

  /// Throws  DataError if `index` is outside [0, size()), or the id is outside the vocabulary.
  std::int64_t token(std::int64_t index) const;
  /// Widens tokens [first, first + out.size()) into `out`.
  /// Throws  as token(), and if the file is no longer the one that was opened.
  void read(std::int64_t first, std::span<std::int64_t> out) const;
  /// Reads the whole file again.
  /// Throws  DataError if it does not have its fingerprint.
  void verify() const;

 private:
  template <class Id>
  void widen(std::int64_t first, std::span<std::int64_t> out) const;

  std::filesystem::path path_;
  MappedFile file_;
  std::int64_t width_ = 0;
  std::int64_t vocab_size_ = 0;
  std::int64_t count_ = 0;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace orthant::data
