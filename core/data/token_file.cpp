// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/data/token_file.hpp>

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <xxhash.h>

#include <orthant/core/base/error.hpp>

namespace orthant::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and are used in place");

constexpr std::array<char, 8> kMagic{'O', 'R', 'T', 'H', 'T', 'O', 'K', 'S'};
constexpr std::uint32_t kVersion = 1;
constexpr std::int64_t kNarrowVocab = 1 << 16;

struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t width = 0;
  std::uint64_t vocab_size = 0;
  std::uint64_t count = 0;
  std::uint64_t fingerprint = 0;
  std::array<std::uint64_t, 3> reserved{};
};
static_assert(sizeof(Header) == 64);

std::uint32_t width_for(std::int64_t vocab_size) { return vocab_size <= kNarrowVocab ? 2 : 4; }

/// The file's header, checked against its size.
Header read_header(std::span<const std::byte> bytes, const std::string& name) {
  const auto fail = [&](const std::string& why) {
    throw DataError(fmt::format("{}: {}; make it again with orthant data prepare", name, why));
  };
  Header header;
  if (bytes.size() < sizeof header) fail(fmt::format("has {} bytes, a token file has at least 64", bytes.size()));
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic) fail("is not a token file (its first bytes are not ORTHTOKS)");
  if (header.version != kVersion)
    fail(fmt::format("has format version {}, this program reads {}", header.version, kVersion));
  const bool vocab_fits = header.vocab_size >= 1 && header.vocab_size <= std::numeric_limits<std::int32_t>::max();
  if (!vocab_fits) fail(fmt::format("says a vocabulary of {}", header.vocab_size));
  const std::uint32_t width = width_for(static_cast<std::int64_t>(header.vocab_size));
  if (header.width != width) fail(fmt::format("says {} bytes a token, its vocabulary wants {}", header.width, width));
  if (header.reserved != decltype(header.reserved){}) fail("has something in the reserved part of its header");
  const std::uint64_t payload = bytes.size() - sizeof header;
  if (payload % width != 0 || payload / width != header.count) {
    fail(fmt::format("says {} tokens of {} bytes, but has {} bytes of them (cut off?)", header.count, width, payload));
  }
  return header;
}

}  // namespace

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, std::int64_t vocab_size)
    : file_(path, 0644, raise_as<DataError>),
      hash_(XXH64_createState(), [](XXH64_state_s* state) { XXH64_freeState(state); }),
      vocab_size_(vocab_size) {
  if (vocab_size < 1 || vocab_size > std::numeric_limits<std::int32_t>::max()) {
    throw DataError(fmt::format("{}: a vocabulary of {} cannot be written", path.string(), vocab_size));
  }
  invariant(hash_ != nullptr, "token file: no memory for a hash state");
  XXH64_reset(hash_.get(), 0);
  const Header place_holder;  // finish() writes the true one
  file_.append(std::as_bytes(std::span(&place_holder, 1)));
}

TokenFileWriter::TokenFileWriter(TokenFileWriter&&) noexcept = default;
TokenFileWriter::~TokenFileWriter() = default;

void TokenFileWriter::append(std::span<const std::int32_t> tokens) {
  const std::uint32_t width = width_for(vocab_size_);
  std::vector<std::byte> bytes(tokens.size() * width);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab_size_) {
      throw DataError(fmt::format("token file: token {} at position {} is outside the vocabulary of {}", tokens[i],
                                  count_ + static_cast<std::int64_t>(i), vocab_size_));
    }
    std::memcpy(bytes.data() + i * width, &tokens[i], width);
  }
  XXH64_update(hash_.get(), bytes.data(), bytes.size());
  file_.append(bytes);
  count_ += std::ssize(tokens);
}

void TokenFileWriter::finish() {
  Header header;
  header.width = width_for(vocab_size_);
  header.vocab_size = static_cast<std::uint64_t>(vocab_size_);
  header.count = static_cast<std::uint64_t>(count_);
  header.fingerprint = XXH64_digest(hash_.get());
  file_.write_at(0, std::as_bytes(std::span(&header, 1)));
  file_.commit();
}

TokenFile::TokenFile(std::filesystem::path path) : path_(std::move(path)), file_(path_, raise_as<DataError>) {
  const Header header = read_header(file_.bytes(), path_.string());
  width_ = header.width;
  vocab_size_ = static_cast<std::int64_t>(header.vocab_size);
  count_ = static_cast<std::int64_t>(header.count);
  fingerprint_ = header.fingerprint;
}

std::int64_t TokenFile::token(std::int64_t index) const {
  std::int64_t value = 0;
  read(index, {&value, 1});
  return value;
}

void TokenFile::read(std::int64_t first, std::span<std::int64_t> out) const {
  const std::int64_t wanted = std::ssize(out);
  if (first < 0 || first > count_ || wanted > count_ - first) {
    throw DataError(
        fmt::format("{}: tokens [{}, {} + {}) are wanted of {}", path_.string(), first, first, wanted, count_));
  }
  if (!file_.is_unchanged(path_)) {
    throw DataError(fmt::format("{}: was changed while this run reads it; start again with a file that stays as it is",
                                path_.string()));
  }
  width_ == 2 ? widen<std::uint16_t>(first, out) : widen<std::uint32_t>(first, out);
}

template <class Id>
void TokenFile::widen(std::int64_t first, std::span<std::int64_t> out) const {
  const std::byte* source = file_.bytes().data() + sizeof(Header) + static_cast<std::size_t>(first) * sizeof(Id);
  for (std::size_t i = 0; i < out.size(); ++i) {
    Id id;
    std::memcpy(&id, source + i * sizeof(Id), sizeof id);
    out[i] = static_cast<std::int64_t>(id);
    if (out[i] >= vocab_size_) {
      throw DataError(
          fmt::format("{}: token {} at position {} is outside the vocabulary of {}; the file is damaged, make it "
                      "again with orthant data prepare",
                      path_.string(), out[i], first + static_cast<std::int64_t>(i), vocab_size_));
    }
  }
}

void TokenFile::verify() const {
  const auto ids = file_.bytes().subspan(sizeof(Header));
  const std::uint64_t found = XXH64(ids.data(), ids.size(), 0);
  if (found == fingerprint_) return;
  throw DataError(
      fmt::format("{}: its tokens have fingerprint {:016x}, the header says {:016x}; the file is damaged, make it "
                  "again with orthant data prepare",
                  path_.string(), found, fingerprint_));
}

}  // namespace orthant::data
