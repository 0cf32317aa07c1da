// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/checkpoint_state.hpp>

#include <set>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/model/tensor_span.hpp>
#include <orthant/core/shard/slice_ranges.hpp>
#include <orthant/launch/weights.hpp>

namespace orthant::launch {
namespace {

using ckpt::StateKind;

at::Tensor& tensor_of(optim::ShardState& shard, StateKind kind) {
  return kind == StateKind::master ? shard.master : kind == StateKind::exp_avg ? shard.exp_avg : shard.exp_avg_sq;
}

/// Calls `visit(shard, parameter, block, from)` for each block of a parameter that a slice of this rank holds: it lies
/// from element `from` of the slice on.
template <class Visit>
void for_each_block(ParallelModel& model, Visit visit) {
  for (auto& shard : model.shards().shards()) {
    for (const int index : model.table().unit(shard.unit).parameters) {
      const auto& parameter = model.table().parameters()[static_cast<std::size_t>(index)];
      const auto [begin, end] =
          shard::common({shard.begin, shard.begin + shard.master.numel()}, shard::elements_of(parameter));
      if (begin >= end) continue;
      for (const auto& block : parameter.placement.blocks_within(begin - parameter.offset, end - parameter.offset))
        visit(shard, parameter, block, parameter.offset + block.local - shard.begin);
    }
  }
}

void require_same_parameters(const model::ModelConfig& config, const ckpt::CheckpointReader& reader) {
  std::vector<std::string> faults;
  std::set<std::string> expected;
  const auto& saved = reader.index().parameters;
  for (const auto& parameter : logical_parameters(config)) {
    expected.insert(parameter.name);
    const auto found = saved.find(parameter.name);
    if (found == saved.end()) {
      faults.push_back(fmt::format("{} is missing", parameter.name));
    } else if (found->second.shape != parameter.placement.global_shape) {
      faults.push_back(fmt::format("{} has shape [{}], the model wants [{}]", parameter.name,
                                   fmt::join(found->second.shape, ", "),
                                   fmt::join(parameter.placement.global_shape, ", ")));
    }
  }
  for (const auto& [name, parameter] : saved) {
    if (!expected.contains(name)) faults.push_back(fmt::format("{} is not a parameter of the model", name));
  }
  if (!faults.empty())
    throw CheckpointError(
        fmt::format("'{}' does not fit the model:\n  {}", reader.folder().string(), fmt::join(faults, "\n  ")));
}

}  // namespace

std::vector<OwnedPiece> owned_pieces(ParallelModel& model) {
  std::vector<OwnedPiece> pieces;
  for_each_block(model, [&](optim::ShardState& shard, const shard::LogicalParameter& parameter,
                            const shard::Block& block, std::int64_t from) {
    if (!shard.counted || !parameter.placement.is_owned()) return;
    for (const auto kind : ckpt::kStateKinds) {
      const auto& tensor = tensor_of(shard, kind);
      if (!tensor.defined()) continue;
      pieces.push_back({.piece = {.parameter = parameter.name,
                                  .kind = kind,
                                  .shape = parameter.placement.global_shape,
                                  .updates = shard.updates,
                                  .type = model::span_of(tensor).type,
                                  .rows = block.rows,
                                  .columns = block.columns,
                                  .bytes = {}},
                        .elements = tensor.narrow(0, from, block.numel())});
    }
  });
  return pieces;
}

void load_state(ParallelModel& model, ckpt::CheckpointReader& reader) {
  require_same_parameters(model.run().model, reader);
  for (auto& shard : model.shards().shards()) shard.updates = -1;
  for_each_block(model, [&](optim::ShardState& shard, const shard::LogicalParameter& parameter,
                            const shard::Block& block, std::int64_t from) {
    const auto& saved = reader.index().parameters.at(parameter.name);
    for (const auto kind : ckpt::kStateKinds) {
      auto& tensor = tensor_of(shard, kind);
      if (!tensor.defined()) continue;
      auto target = tensor.narrow(0, from, block.numel());
      if (!saved.tensors.contains(kind)) {
        target.zero_();
        continue;
      }
      auto read = at::empty({block.numel()}, at::TensorOptions(model::scalar_type(saved.tensors.at(kind).type)));
      reader.read(parameter.name, kind, block.rows, block.columns,
                  {static_cast<std::byte*>(read.mutable_data_ptr()), read.nbytes()});
      target.copy_(read);
    }
    if (shard.updates >= 0 && shard.updates != saved.updates)
      throw CheckpointError(fmt::format("'{}': parameters of unit {} have seen {} and {} updates",
                                        reader.folder().string(), model.table().unit(shard.unit).name, shard.updates,
                                        saved.updates));
    shard.updates = saved.updates;
  });
  for (auto& shard : model.shards().shards()) {
    shard.updates = std::max<std::int64_t>(shard.updates, 0);
    if (!shard.weight.is_same(shard.master)) shard.weight.copy_(shard.master);
  }
}

}  // namespace orthant::launch
