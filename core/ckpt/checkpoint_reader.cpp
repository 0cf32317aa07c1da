// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/ckpt/checkpoint_reader.hpp>

#include <cstring>
#include <utility>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/base/mapped_file.hpp>
#include <orthant/core/ckpt/safetensors_dtype.hpp>
#include <orthant/core/shard/slice_ranges.hpp>

namespace orthant::ckpt {
namespace {

/// A link in a checkpoint's folder was not put there by Orthant, and is not followed.
void require_regular(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::symlink_status(path, error);
  if (!std::filesystem::exists(status)) throw CheckpointError(fmt::format("{}: is missing", path.string()));
  if (!std::filesystem::is_regular_file(status))
    throw CheckpointError(fmt::format("{}: is no regular file", path.string()));
}

std::string read_index(const std::filesystem::path& path) {
  require_regular(path);
  return std::string(MappedFile(path, raise_as<CheckpointError>).text());
}

}  // namespace

CheckpointReader::CheckpointReader(std::filesystem::path folder) : folder_(std::move(folder)) {
  const auto path = folder_ / "index.json";
  const auto text = read_index(path);
  index_ = CheckpointIndex::parse(text, path.string());
  identity_ = checksum_of(std::as_bytes(std::span(text)));
  files_.resize(index_.files.size());
}

const SafetensorsFile& CheckpointReader::file(std::int64_t number) {
  auto& file = files_.at(static_cast<std::size_t>(number));
  if (file) return *file;
  const auto& wanted = index_.files[static_cast<std::size_t>(number)];
  const auto path = folder_ / wanted.name;
  require_regular(path);
  const auto size = std::filesystem::file_size(path);
  if (size != wanted.bytes)
    throw CheckpointError(fmt::format("{}: has {} bytes, the index says {}", path.string(), size, wanted.bytes));
  auto opened = std::make_unique<SafetensorsFile>(path);
  if (checksum_of(opened->header()) != wanted.header) {
    const auto step = opened->metadata().find("step");
    throw CheckpointError(
        fmt::format("{}: its header is not the one that was written{}", path.string(),
                    step != opened->metadata().end() && step->second != std::to_string(index_.state.step)
                        ? fmt::format(" (it is of step {})", step->second)
                        : ""));
  }
  file = std::move(opened);
  return *file;
}

std::span<const std::byte> CheckpointReader::checked(const std::string& parameter, StateKind kind,
                                                     const SavedParameter& saved, const Slice& slice) {
  const auto name = entry_name(parameter, kind, slice);
  const auto& type = saved.tensors.at(kind).type;
  const auto& entry = file(slice.file).at(name);
  const bool fits = entry.dtype == safetensors_name(type) &&
                    entry.bytes.size() == static_cast<std::size_t>(slice.numel()) * size_of(type);
  const auto where = [&] { return (folder_ / index_.files[static_cast<std::size_t>(slice.file)].name).string(); };
  if (!fits) throw CheckpointError(fmt::format("{}: {} is not of the index's type and size", where(), name));
  if (checked_.contains({slice.file, name})) return entry.bytes;
  if (const auto found = checksum_of(entry.bytes); found != slice.checksum) {
    throw CheckpointError(fmt::format("{}: {} is damaged: checksum {:016x}, the index says {:016x}", where(), name,
                                      found, slice.checksum));
  }
  checked_.emplace(slice.file, name);
  return entry.bytes;
}

void CheckpointReader::read(const std::string& parameter, StateKind kind, shard::Range rows, shard::Range columns,
                            std::span<std::byte> out) {
  const auto saved = index_.parameters.find(parameter);
  if (saved == index_.parameters.end() || !saved->second.tensors.contains(kind))
    throw CheckpointError(fmt::format("{}: has no {} of {}", folder_.string(), name_of(kind), parameter));
  const auto& tensor = saved->second.tensors.at(kind);
  const auto element = size_of(tensor.type);
  std::int64_t filled = 0;
  for (const auto& slice : tensor.slices) {
    const auto r = shard::common(rows, slice.rows), c = shard::common(columns, slice.columns);
    if (r.begin >= r.end || c.begin >= c.end) continue;
    const auto bytes = checked(parameter, kind, saved->second, slice);
    for (std::int64_t row = r.begin; row < r.end; ++row) {
      const auto from = (row - slice.rows.begin) * slice.columns.length() + c.begin - slice.columns.begin;
      const auto to = (row - rows.begin) * columns.length() + c.begin - columns.begin;
      std::memcpy(out.data() + static_cast<std::size_t>(to) * element,
                  bytes.data() + static_cast<std::size_t>(from) * element,
                  static_cast<std::size_t>(c.length()) * element);
    }
    filled += r.length() * c.length();
  }
  if (filled != rows.length() * columns.length() || out.size() != static_cast<std::size_t>(filled) * element)
    throw CheckpointError(fmt::format("{}: {} of {} has {} of the {} elements that are wanted", folder_.string(),
                                      name_of(kind), parameter, filled, rows.length() * columns.length()));
}

std::vector<std::string> CheckpointReader::verify() {
  std::vector<std::string> faults;
  const auto note = [&](auto&& check) {
    try {
      check();
    } catch (const Error& error) {
      faults.push_back(error.what());
    }
  };
  for (std::size_t number = 0; number < files_.size(); ++number) {
    note([&] { file(static_cast<std::int64_t>(number)); });
  }
  for (const auto& [name, parameter] : index_.parameters) {
    for (const auto& [kind, tensor] : parameter.tensors) {
      for (const auto& slice : tensor.slices) {
        if (files_[static_cast<std::size_t>(slice.file)]) note([&] { checked(name, kind, parameter, slice); });
      }
    }
  }
  return faults;
}

}  // namespace orthant::ckpt
