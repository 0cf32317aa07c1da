// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/ckpt/shard_writer.hpp>

#include <fmt/format.h>

#include <orthant/core/ckpt/safetensors_writer.hpp>

namespace orthant::ckpt {

CheckpointIndex write_shard(const std::filesystem::path& folder, int rank, const RunState& state,
                            const std::vector<StatePiece>& pieces) {
  CheckpointIndex part;
  if (pieces.empty()) return part;
  std::vector<TensorSpec> specs;
  for (const auto& piece : pieces) {
    const Slice slice{.rows = piece.rows, .columns = piece.columns};
    const auto rows = piece.rows.length(), columns = piece.columns.length();
    specs.push_back({entry_name(piece.parameter, piece.kind, slice), piece.type,
                     piece.shape.size() == 1 ? shard::Shape{columns} : shard::Shape{rows, columns}});
  }
  const auto name = fmt::format("rank-{:05}.safetensors", rank);
  // Run and step in the file itself tell a file that strayed in from another checkpoint.
  SafetensorsWriter writer(folder / name, specs, {{"run", state.run}, {"step", std::to_string(state.step)}});
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto& piece = pieces[i];
    auto& parameter =
        part.parameters.try_emplace(piece.parameter, SavedParameter{piece.shape, piece.updates, {}}).first->second;
    auto& tensor = parameter.tensors.try_emplace(piece.kind, SavedTensor{piece.type, {}}).first->second;
    tensor.slices.push_back({.rows = piece.rows, .columns = piece.columns, .checksum = checksum_of(piece.bytes)});
    writer.write(specs[i].name, piece.bytes);
  }
  part.files.push_back(
      {.name = name, .bytes = writer.size(), .header = checksum_of(std::as_bytes(std::span(writer.header())))});
  writer.finish();
  return part;
}

}  // namespace orthant::ckpt
