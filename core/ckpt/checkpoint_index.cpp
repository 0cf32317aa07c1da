// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/ckpt/checkpoint_index.hpp>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <xxhash.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/ckpt/safetensors_dtype.hpp>
#include <orthant/core/ckpt/strict_json.hpp>

namespace orthant::ckpt {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kFormat = "orthant-checkpoint";
constexpr const char* kRandom = "philox, keyed by seed, purpose and global index";  // no state: nothing else to save
constexpr std::int64_t kLargest = std::int64_t{1} << 62;

[[noreturn]] void unsound(const std::string& why) { throw std::runtime_error(why); }

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::uint64_t from_hex(const Json& json) {
  const auto text = json.get<std::string>();
  const bool sound = text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!sound) unsound(fmt::format("has \"{}\" where 16 hexadecimal digits belong", text));
  return std::stoull(text, nullptr, 16);
}

std::int64_t count_at(const Json& json, const char* key) {
  const auto& value = json.at(key);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(kLargest))
    unsound(fmt::format("has {} where \"{}\" belongs", value.dump(), key));
  return value.get<std::int64_t>();
}

OrderedJson to_json(const SavedTensor& tensor) {
  auto slices = OrderedJson::array();
  for (const auto& s : tensor.slices) {
    slices.push_back({s.rows.begin, s.rows.end, s.columns.begin, s.columns.end, s.file, hex(s.checksum)});
  }
  return {{"dtype", safetensors_name(tensor.type)}, {"slices", std::move(slices)}};
}

OrderedJson to_json(const std::vector<ShardFile>& files) {
  auto json = OrderedJson::array();
  for (const auto& file : files)
    json.push_back({{"name", file.name}, {"bytes", file.bytes}, {"header", hex(file.header)}});
  return json;
}

OrderedJson to_json(const std::map<std::string, SavedParameter>& parameters) {
  auto json = OrderedJson::object();
  for (const auto& [name, parameter] : parameters) {
    OrderedJson entry{{"shape", parameter.shape}, {"updates", parameter.updates}};
    for (const auto& [kind, tensor] : parameter.tensors) entry[std::string(name_of(kind))] = to_json(tensor);
    json[name] = std::move(entry);
  }
  return json;
}

Slice slice_from(const Json& json) {
  if (!json.is_array() || json.size() != 6) unsound("has a slice that is not [row, row, column, column, file, sum]");
  std::array<std::int64_t, 5> n{};
  for (std::size_t i = 0; i < n.size(); ++i) {
    if (!json[i].is_number_unsigned() || json[i].get<std::uint64_t>() > static_cast<std::uint64_t>(kLargest))
      unsound(fmt::format("has {} in a slice", json[i].dump()));
    n[i] = json[i].get<std::int64_t>();
  }
  return {.rows = {n[0], n[1]}, .columns = {n[2], n[3]}, .file = n[4], .checksum = from_hex(json[5])};
}

SavedTensor tensor_from(const Json& json) {
  SavedTensor tensor;
  const auto type = dtype_named(json.at("dtype").get<std::string>());
  if (!type || (*type != DType::f32 && *type != DType::f64 && *type != DType::bf16))
    unsound(fmt::format("has dtype {}", json.at("dtype").dump()));
  tensor.type = *type;
  for (const auto& slice : json.at("slices")) tensor.slices.push_back(slice_from(slice));
  return tensor;
}

shard::Shape shape_from(const Json& json) {
  shard::Shape shape;
  std::int64_t numel = 1;
  for (const auto& size : json) {
    const bool sound = size.is_number_unsigned() && size.get<std::uint64_t>() >= 1 &&
                       !__builtin_mul_overflow(numel, size.get<std::int64_t>(), &numel) && numel <= kLargest;
    if (!sound) unsound(fmt::format("has shape {}", json.dump()));
    shape.push_back(size.get<std::int64_t>());
  }
  if (shape.empty() || shape.size() > 2) unsound(fmt::format("has shape {}", json.dump()));
  return shape;
}

std::map<std::string, SavedParameter> parameters_from(const Json& json) {
  std::map<std::string, SavedParameter> parameters;
  for (const auto& [name, entry] : json.items()) {
    try {
      SavedParameter parameter{
          .shape = shape_from(entry.at("shape")), .updates = count_at(entry, "updates"), .tensors = {}};
      for (const auto kind : kStateKinds) {
        const auto tensor = entry.find(std::string(name_of(kind)));
        if (tensor != entry.end()) parameter.tensors.emplace(kind, tensor_from(*tensor));
      }
      parameters.emplace(name, std::move(parameter));
    } catch (const std::exception& error) {
      unsound(fmt::format("entry \"{}\" {}", name, error.what()));
    }
  }
  return parameters;
}

bool is_file_name(const std::string& name) {
  constexpr std::string_view kBegin = "rank-", kEnd = ".safetensors";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd) || name.size() <= kBegin.size() + kEnd.size()) return false;
  const auto number = name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size());
  return number.size() <= 10 && number.find_first_not_of("0123456789") == std::string::npos;
}

std::vector<ShardFile> files_from(const Json& json) {
  std::vector<ShardFile> files;
  for (const auto& entry : json) {
    ShardFile file{.name = entry.at("name").get<std::string>(),
                   .bytes = static_cast<std::uint64_t>(count_at(entry, "bytes")),
                   .header = from_hex(entry.at("header"))};
    if (!is_file_name(file.name)) unsound(fmt::format("names a file \"{}\"", file.name));
    files.push_back(std::move(file));
  }
  return files;
}

/// Slices lie inside, do not overlap, and are as many elements as the parameter.
void check_tiles(const std::string& what, const shard::Shape& shape, std::vector<Slice> slices, std::size_t files) {
  const std::int64_t rows = shape.size() == 2 ? shape.front() : 1, columns = shape.back();
  std::sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
    return std::pair(a.rows.begin, a.columns.begin) < std::pair(b.rows.begin, b.columns.begin);
  });
  std::int64_t covered = 0;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const auto& s = slices[i];
    const bool inside = s.rows.begin < s.rows.end && s.rows.end <= rows && s.columns.begin < s.columns.end &&
                        s.columns.end <= columns && s.file < static_cast<std::int64_t>(files);
    if (!inside)
      unsound(fmt::format("{} has a slice [{}:{}, {}:{}] in file {} that is not of it", what, s.rows.begin, s.rows.end,
                          s.columns.begin, s.columns.end, s.file));
    covered += s.numel();
    for (std::size_t j = i + 1; j < slices.size() && slices[j].rows.begin < s.rows.end; ++j) {
      if (slices[j].columns.begin < s.columns.end && s.columns.begin < slices[j].columns.end)
        unsound(fmt::format("{} has slices that overlap in row {}", what, slices[j].rows.begin));
    }
  }
  if (covered != rows * columns)
    unsound(fmt::format("{} has slices of {} of its {} elements", what, covered, rows * columns));
}

void check(const CheckpointIndex& index) {
  for (const auto& [name, parameter] : index.parameters) {
    const auto kinds = parameter.tensors.size();
    if (!parameter.tensors.contains(StateKind::master) || (kinds != 1 && kinds != kStateKinds.size()))
      unsound(fmt::format("\"{}\" has {} of master and two moments", name, kinds));
    for (const auto& [kind, tensor] : parameter.tensors) {
      check_tiles(fmt::format("\"{}\" {}", name, name_of(kind)), parameter.shape, tensor.slices, index.files.size());
    }
  }
}

OrderedJson body_of(const CheckpointIndex& index) {
  const auto& s = index.state;
  return {{"format", kFormat},
          {"version", kFormatVersion},
          {"run", s.run},
          {"step", s.step},
          {"samples", s.samples},
          {"seed", s.seed},
          {"random", kRandom},
          {"mesh", s.mesh},
          {"config", s.config},
          {"config_hash", hex(s.config_hash)},
          {"data", hex(s.data)},
          {"files", to_json(index.files)},
          {"parameters", to_json(index.parameters)}};
}

std::uint64_t checksum_of(std::string_view text) { return ckpt::checksum_of(std::as_bytes(std::span(text))); }

CheckpointIndex index_from(std::string_view text) {
  const auto json = parse_strictly(text);
  if (!json.is_object() || json.value("format", "") != kFormat) unsound("is no checkpoint index");
  const auto version = count_at(json, "version");
  if (version != kFormatVersion)
    unsound(fmt::format("has format version {}; this program reads version {}", version, kFormatVersion));
  CheckpointIndex index;
  index.state = {.run = json.at("run").get<std::string>(),
                 .step = count_at(json, "step"),
                 .samples = count_at(json, "samples"),
                 .seed = count_at(json, "seed"),
                 .mesh = json.at("mesh").get<std::string>(),
                 .config = json.at("config").get<std::string>(),
                 .config_hash = from_hex(json.at("config_hash")),
                 .data = from_hex(json.at("data"))};
  if (json.at("random") != kRandom)
    unsound(fmt::format("was made with random numbers by {}", json.at("random").dump()));
  index.files = files_from(json.at("files"));
  index.parameters = parameters_from(json.at("parameters"));
  // Only the one text that says this is sound: so a changed blank is found, too.
  if (index.text() != text) unsound("does not have its checksum: it was changed after it was written");
  check(index);
  return index;
}

}  // namespace

std::uint64_t checksum_of(std::span<const std::byte> bytes) { return XXH64(bytes.data(), bytes.size(), 0); }

std::string_view name_of(StateKind kind) {
  constexpr std::array kNames{"master", "exp_avg", "exp_avg_sq"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string entry_name(const std::string& parameter, StateKind kind, const Slice& slice) {
  return fmt::format("{}.{}[{}:{},{}:{}]", parameter, name_of(kind), slice.rows.begin, slice.rows.end,
                     slice.columns.begin, slice.columns.end);
}

std::string CheckpointIndex::text() const {
  auto body = body_of(*this);
  body["checksum"] = hex(checksum_of(body.dump()));
  return body.dump() + "\n";
}

CheckpointIndex CheckpointIndex::parse(std::string_view text, const std::string& where) {
  try {
    return index_from(text);
  } catch (const std::exception& error) {
    throw CheckpointError(fmt::format("{}: the index {}", where, error.what()));
  }
}

std::string part_text(const CheckpointIndex& part) {
  return OrderedJson{{"files", to_json(part.files)}, {"parameters", to_json(part.parameters)}}.dump();
}

CheckpointIndex merge_parts(const RunState& state, std::span<const std::string> parts) {
  CheckpointIndex index{.state = state, .files = {}, .parameters = {}};
  try {
    for (const auto& text : parts) {
      const auto json = parse_strictly(text);
      const auto first_file = static_cast<std::int64_t>(index.files.size());
      for (auto& file : files_from(json.at("files"))) index.files.push_back(std::move(file));
      for (auto& [name, parameter] : parameters_from(json.at("parameters"))) {
        auto& all =
            index.parameters.try_emplace(name, SavedParameter{parameter.shape, parameter.updates, {}}).first->second;
        if (all.shape != parameter.shape || all.updates != parameter.updates)
          unsound(fmt::format("\"{}\" is not the same on all ranks", name));
        for (auto& [kind, tensor] : parameter.tensors) {
          auto& whole = all.tensors.try_emplace(kind, SavedTensor{tensor.type, {}}).first->second;
          if (whole.type != tensor.type) unsound(fmt::format("\"{}\" {} is of two types", name, name_of(kind)));
          for (auto& slice : tensor.slices) {
            slice.file += first_file;
            whole.slices.push_back(slice);
          }
        }
      }
    }
    check(index);
  } catch (const std::exception& error) {
    throw CheckpointError(fmt::format("what the ranks have written does not fit together: it {}", error.what()));
  }
  return index;
}

}  // namespace orthant::ckpt
