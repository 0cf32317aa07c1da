// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/weights.hpp>

#include <algorithm>
#include <memory>
#include <set>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <orthant/core/ckpt/safetensors_file.hpp>
#include <orthant/core/ckpt/safetensors_writer.hpp>
#include <orthant/core/model/dense_factory.hpp>
#include <orthant/core/model/tensor_span.hpp>
#include <orthant/core/shard/slice_ranges.hpp>

namespace orthant::launch {
namespace {

/// Calls `visit(shard, parameter, run, from)` for each piece of a parameter that a slice of this rank holds: elements
/// [run.global, run.global + run.length) of the global tensor lie from element `from` of the slice on.
template <class Visit>
void for_each_piece(ParallelModel& model, Visit visit) {
  for (auto& shard : model.shards().shards()) {
    for (int index : model.table().unit(shard.unit).parameters) {
      const auto& parameter = model.table().parameters()[static_cast<std::size_t>(index)];
      const auto [begin, end] =
          shard::common({shard.begin, shard.begin + shard.master.numel()}, shard::elements_of(parameter));
      if (begin >= end) continue;
      for (const auto& run : parameter.placement.runs_within(begin - parameter.offset, end - parameter.offset)) {
        visit(shard, parameter, run, parameter.offset + run.local - shard.begin);
      }
    }
  }
}

DType master_type(ParallelModel& model) { return model.run().train.precision == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace

std::vector<shard::LogicalParameter> logical_parameters(const model::ModelConfig& config) {
  shard::ParameterTable table;
  model::ParameterStore store;
  model::DenseFactory dense(config, {table, store});
  const step::LlamaProgram whole(
      {.model = config,
       .rows = {.seq = 1, .batch = 1},
       .stages = {{.stage = StageId{0}, .first = LayerId{0}, .last = LayerId{static_cast<int>(config.head_layer())}}}},
      dense, {table, store}, {});
  return table.parameters();
}

void gather_parameters(ParallelModel& model, ShardTensor which,
                       const std::function<void(const std::string&, const at::Tensor&)>& take) {
  const at::TensorOptions options(model::scalar_type(master_type(model)));
  for (const auto& wanted : logical_parameters(model.run().model)) {
    auto whole = at::zeros(wanted.placement.global_shape, options);
    auto flat = whole.view({-1});
    for_each_piece(model, [&](optim::ShardState& shard, const shard::LogicalParameter& parameter, const shard::Run& run,
                              std::int64_t from) {
      if (!shard.counted || !parameter.placement.is_owned() || parameter.name != wanted.name ||
          !(shard.*which).defined())
        return;
      flat.narrow(0, run.global, run.length).copy_((shard.*which).narrow(0, from, run.length));
    });
    // One owner holds each element and the others zero, so the sum is a gather.
    model.mesh()
        .control()
        .collectives->all_reduce(model::span_of(whole), comm::Reduction::sum)
        .wait(model.context().timeout);
    take(wanted.name, whole);
  }
}

void save_tensors(ParallelModel& model, ShardTensor which, double scale, const std::filesystem::path& path) {
  std::unique_ptr<ckpt::SafetensorsWriter> writer;
  if (model.context().fabric.rank() == 0) {
    std::vector<ckpt::TensorSpec> specs;
    for (const auto& parameter : logical_parameters(model.run().model)) {
      specs.push_back({parameter.name, master_type(model), parameter.placement.global_shape});
    }
    writer = std::make_unique<ckpt::SafetensorsWriter>(path, std::move(specs));
  }
  gather_parameters(model, which, [&](const std::string& name, const at::Tensor& whole) {
    if (writer && scale != 1.0) whole.mul_(scale);
    if (writer) writer->write(name, {static_cast<const std::byte*>(whole.const_data_ptr()), whole.nbytes()});
  });
  if (writer) writer->finish();
}

void load_weights(ParallelModel& model, const std::filesystem::path& path) {
  const ckpt::SafetensorsFile file(path);
  std::vector<std::string> faults;
  std::set<std::string> expected;
  for (const auto& parameter : logical_parameters(model.run().model)) {
    expected.insert(parameter.name);
    if (!file.contains(parameter.name)) {
      faults.push_back(fmt::format("{} is missing", parameter.name));
      continue;
    }
    const auto& entry = file.at(parameter.name);
    if (entry.shape != parameter.placement.global_shape) {
      faults.push_back(fmt::format("{} has shape [{}], the model wants [{}]", parameter.name,
                                   fmt::join(entry.shape, ", "), fmt::join(parameter.placement.global_shape, ", ")));
    }
    if (entry.dtype != "F32" && entry.dtype != "F64" && entry.dtype != "BF16") {
      faults.push_back(fmt::format("{} has type {}; F32, F64 or BF16 can be loaded", parameter.name, entry.dtype));
    }
  }
  for (const auto& [name, entry] : file.tensors()) {
    if (!expected.contains(name)) faults.push_back(fmt::format("{} is not a parameter of the model", name));
  }
  if (!faults.empty())
    throw CheckpointError(fmt::format("'{}' does not fit the model:\n  {}", path.string(), fmt::join(faults, "\n  ")));

  for_each_piece(model, [&](optim::ShardState& shard, const shard::LogicalParameter& parameter, const shard::Run& run,
                            std::int64_t from) {
    const auto type = file.dtype(parameter.name);
    const auto bytes = file.at(parameter.name).bytes.subspan(static_cast<std::size_t>(run.global) * size_of(type));
    auto piece = at::empty({run.length}, at::TensorOptions(model::scalar_type(type)));
    std::copy_n(bytes.data(), piece.nbytes(), static_cast<std::byte*>(piece.mutable_data_ptr()));
    shard.master.narrow(0, from, run.length).copy_(piece);
  });
  for (auto& shard : model.shards().shards()) {
    if (!shard.weight.is_same(shard.master)) shard.weight.copy_(shard.master);
  }
}

}  // namespace orthant::launch
