// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/ckpt/safetensors_file.hpp>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/error.hpp>
#include <orthant/core/ckpt/safetensors_dtype.hpp>
#include <orthant/core/ckpt/strict_json.hpp>

namespace orthant::ckpt {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kLongestHeader = 100'000'000;
constexpr std::size_t kLongestName = 4096;
constexpr std::size_t kMostDims = 64;

/// A tensor's place in the data, and what its header entry claims.
struct Claim {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;
};

/// Elements times bits, over 8; nothing if that overflows or is no whole number of bytes.
std::optional<std::uint64_t> bytes_of(const std::vector<std::int64_t>& shape, std::uint64_t bits) {
  std::uint64_t product = bits;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(product, static_cast<std::uint64_t>(size), &product)) return std::nullopt;
  }
  if (product % 8 != 0) return std::nullopt;
  return product / 8;
}

std::uint64_t unsigned_at(const Json& array, std::size_t index) {
  const Json& value = array.at(index);
  if (!value.is_number_unsigned()) throw std::runtime_error(fmt::format("has {} where a size belongs", value.dump()));
  return value.get<std::uint64_t>();
}

Claim read_claim(const std::string& name, const Json& entry) {
  if (name.empty() || name.size() > kLongestName)
    throw std::runtime_error(fmt::format("has a name of {} bytes", name.size()));
  const bool complete = entry.is_object() && entry.size() == 3 && entry.contains("dtype") && entry.contains("shape") &&
                        entry.contains("data_offsets");
  if (!complete) throw std::runtime_error("is not {dtype, shape, data_offsets}");
  Claim claim{.name = name, .dtype = entry.at("dtype").get<std::string>(), .shape = {}};
  const Json &shape = entry.at("shape"), &offsets = entry.at("data_offsets");
  if (!shape.is_array() || shape.size() > kMostDims) throw std::runtime_error("has no sound shape");
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const std::uint64_t size = unsigned_at(shape, dim);
    if (size > std::uint64_t{1} << 62) throw std::runtime_error("has too large a shape");
    claim.shape.push_back(static_cast<std::int64_t>(size));
  }
  if (!offsets.is_array() || offsets.size() != 2) throw std::runtime_error("has no two data_offsets");
  claim.begin = unsigned_at(offsets, 0);
  claim.end = unsigned_at(offsets, 1);
  const auto bits = bits_of(claim.dtype);
  if (!bits) throw std::runtime_error(fmt::format("has unknown dtype \"{}\"", claim.dtype));
  const auto bytes = bytes_of(claim.shape, *bits);
  if (!bytes) throw std::runtime_error("has too large a shape, or one that ends inside a byte");
  if (claim.end < claim.begin || claim.end - claim.begin != *bytes) {
    throw std::runtime_error(
        fmt::format("has {} bytes by its shape, but data_offsets [{}, {}]", *bytes, claim.begin, claim.end));
  }
  return claim;
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::filesystem::path path)
    : path_(std::move(path)), file_(path_, raise_as<CheckpointError>) {
  const auto bytes = file_.bytes();
  std::uint64_t length = 0;
  if (bytes.size() < sizeof length) fail(fmt::format("has {} bytes, a safetensors file at least 8", bytes.size()));
  std::memcpy(&length, bytes.data(), sizeof length);
  const std::uint64_t rest = bytes.size() - sizeof length;
  if (length > kLongestHeader)
    fail(fmt::format("says a header of {} bytes, at most {} are read", length, kLongestHeader));
  if (length > rest) fail(fmt::format("says a header of {} bytes, but {} bytes follow (cut off?)", length, rest));
  const std::string_view header = file_.text().substr(sizeof length, length);
  if (!header.starts_with('{')) fail("has a header that does not begin with {");
  read_header(header, bytes.subspan(sizeof length + length));
  header_bytes_ = sizeof length + length;
}

std::span<const std::byte> SafetensorsFile::header() const { return file_.bytes().first(header_bytes_); }
std::uint64_t SafetensorsFile::size() const { return file_.bytes().size(); }

void SafetensorsFile::read_header(std::string_view header, std::span<const std::byte> data) {
  Json json;
  std::vector<Claim> claims;
  try {
    json = parse_strictly(header);
  } catch (const std::exception& error) {
    fail(fmt::format("the header {}", error.what()));
  }
  for (const auto& [name, entry] : json.items()) {
    try {
      if (name == "__metadata__") {
        metadata_ = entry.get<std::map<std::string, std::string>>();
      } else {
        claims.push_back(read_claim(name, entry));
      }
    } catch (const std::exception& error) {
      fail(fmt::format("entry \"{}\" {}", name, error.what()));
    }
  }
  std::sort(claims.begin(), claims.end(),
            [](const Claim& a, const Claim& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::uint64_t covered = 0;
  for (Claim& claim : claims) {
    if (claim.begin != covered) {
      fail(fmt::format("entry \"{}\" begins at byte {} of the data, but the one before ends at {}", claim.name,
                       claim.begin, covered));
    }
    if (claim.end > data.size()) {
      fail(fmt::format("entry \"{}\" ends at byte {} of {} (cut off?)", claim.name, claim.end, data.size()));
    }
    covered = claim.end;
    const auto bytes = data.subspan(claim.begin, claim.end - claim.begin);
    tensors_.emplace(std::move(claim.name), TensorView{std::move(claim.dtype), std::move(claim.shape), bytes});
  }
  if (covered != data.size()) fail(fmt::format("{} bytes at its end belong to no tensor", data.size() - covered));
}

const TensorView& SafetensorsFile::at(std::string_view name) const {
  const auto tensor = tensors_.find(std::string(name));
  if (tensor == tensors_.end()) fail(fmt::format("has no tensor \"{}\" among its {}", name, tensors_.size()));
  return tensor->second;
}

DType SafetensorsFile::dtype(std::string_view name) const {
  const TensorView& tensor = at(name);
  if (const auto type = dtype_named(tensor.dtype)) return *type;
  fail(fmt::format("tensor \"{}\" is {}; convert it to BF16, F32 or F64", name, tensor.dtype));
}

void SafetensorsFile::fail(const std::string& why) const {
  throw CheckpointError(fmt::format("{}: {}; use a sound safetensors file", path_.string(), why));
}

}  // namespace orthant::ckpt
