// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/ckpt/safetensors_writer.hpp>

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/error.hpp>
#include <orthant/core/ckpt/safetensors_dtype.hpp>

namespace orthant::ckpt {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian and are written from memory");

std::uint64_t bytes_of(const TensorSpec& tensor) {
  std::uint64_t bytes = size_of(tensor.dtype);
  for (const std::int64_t size : tensor.shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes)) {
      throw CheckpointError(fmt::format("tensor \"{}\" has a shape that cannot be written", tensor.name));
    }
  }
  return bytes;
}

/// Widest elements first, so that every tensor is aligned to its own element; then by name.
void sort_for_file(std::vector<TensorSpec>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    const auto wide_a = size_of(a.dtype), wide_b = size_of(b.dtype);
    return wide_a != wide_b ? wide_a > wide_b : a.name < b.name;
  });
}

/// The file's first bytes: length, then JSON padded with blanks to a multiple of 8.
std::string header_bytes(const nlohmann::ordered_json& json, const std::filesystem::path& path) {
  std::string text;
  try {
    text = json.dump();
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{}: a name or metadata is not UTF-8: {}", path.string(), error.what()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> tensors,
                                     std::map<std::string, std::string> metadata)
    : path_(path), file_(path, 0600, raise_as<CheckpointError>) {
  sort_for_file(tensors);
  metadata.emplace("format", "pt");
  nlohmann::ordered_json json{{"__metadata__", metadata}};
  std::uint64_t offset = 0;
  for (const TensorSpec& tensor : tensors) {
    const bool fresh = places_.emplace(tensor.name, Place{offset, bytes_of(tensor)}).second;
    if (!fresh || tensor.name.empty() || tensor.name == "__metadata__") {
      throw CheckpointError(
          fmt::format("{}: the name \"{}\" is {}", path.string(), tensor.name, fresh ? "not allowed" : "there twice"));
    }
    const std::uint64_t end = offset + places_.at(tensor.name).bytes;
    json[tensor.name] = {
        {"dtype", safetensors_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  header_ = header_bytes(json, path);
  size_ = header_.size() + offset;
  file_.append(std::as_bytes(std::span(header_)));
  for (auto& [name, place] : places_) place.offset += header_.size();
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  const auto found = places_.find(std::string(name));
  if (found == places_.end())
    throw CheckpointError(fmt::format("{}: no tensor \"{}\" was announced", path_.string(), name));
  Place& place = found->second;
  if (place.written) throw CheckpointError(fmt::format("{}: tensor \"{}\" is written twice", path_.string(), name));
  if (bytes.size() != place.bytes) {
    throw CheckpointError(fmt::format("{}: tensor \"{}\" has {} bytes, its shape wants {}", path_.string(), name,
                                      bytes.size(), place.bytes));
  }
  file_.write_at(place.offset, bytes);
  place.written = true;
}

void SafetensorsWriter::finish() {
  for (const auto& [name, place] : places_) {
    if (!place.written) throw CheckpointError(fmt::format("{}: tensor \"{}\" was never written", path_.string(), name));
  }
  file_.commit();
}

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorEntry>& entries,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorSpec> specs;
  for (const TensorEntry& entry : entries) specs.push_back({entry.name, entry.dtype, entry.shape});
  SafetensorsWriter writer(path, std::move(specs), metadata);
  for (const TensorEntry& entry : entries) writer.write(entry.name, entry.bytes);
  writer.finish();
}

}  // namespace orthant::ckpt
