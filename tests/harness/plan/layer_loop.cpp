// SPDX-License-Identifier: Apache-2.0
#include <orthant/tests/harness/plan/layer_loop.hpp>

#include <stdexcept>

#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

namespace orthant::tests {
namespace {

using shard::Shape;
using shard::UnitKind;
using train::Residency;

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

}  // namespace

NumberModel::NumberModel(int blocks, std::int64_t width) : norms{blocks + 2} {
  const auto add_unit = [&](int id, std::string name, UnitKind kind) {
    shard::FlatUnit unit;
    unit.id = UnitId{id};
    unit.name = std::move(name);
    unit.kind = kind;
    unit.decays = kind != UnitKind::norms;
    table.add_unit(unit);
  };
  const auto add = [&](UnitId unit, const std::string& name, Shape shape) {
    return &store.add(unit, table.add_region(unit, {{name, shard::replicate(std::move(shape))}}));
  };
  add_unit(0, "embedding", UnitKind::embedding);
  for (int i = 1; i <= blocks; ++i) add_unit(i, fmt::format("layers.{}", i - 1), UnitKind::block);
  add_unit(blocks + 1, "head", UnitKind::head);
  add_unit(norms.value, "norms", UnitKind::norms);
  for (int i = 0; i <= blocks + 1; ++i) {
    const std::string name = table.unit(UnitId{i}).name;
    Layer layer{.main = UnitId{i}, .parameters = {add(UnitId{i}, name + ".a", {width, 3})}, .norm = nullptr};
    if (i >= 1 && i <= blocks) layer.parameters.push_back(add(UnitId{i}, name + ".b", {width}));
    if (i >= 1) layer.norm = add(norms, name + ".norm", {7});
    layers.push_back(std::move(layer));
  }
}

bool is_used(const shard::FlatUnit& unit, std::int64_t index) {
  for (const auto& region : unit.regions) {
    if (index >= region.offset && index < region.offset + shard::numel(region.shape)) return true;
  }
  return false;
}

double initial_weight(const shard::FlatUnit& unit, std::int64_t index) {
  return is_used(unit, index) ? static_cast<double>(1 + (unit.id.value * 5 + index) % 61) : 0.0;
}

optim::InitialWeights number_weights() {
  return [](const shard::FlatUnit& unit, std::int64_t begin, at::Tensor master) {
    for (std::int64_t i = 0; i < master.numel(); ++i) master[i] = initial_weight(unit, begin + i);
  };
}

double contribution(UnitId unit, std::int64_t index, int rank, int step, int microbatch) {
  return static_cast<double>(1 + (index + 3 * unit.value + 7 * rank + 11 * step + 13 * microbatch) % 17);
}

stream::Task LayerLoop::compute_task(const std::string& name) {
  return {.name = name, .stream = parts_.compute, .cost_us = parts_.compute_us()};
}

void LayerLoop::read_weights(stream::Task& task, const NumberModel::Layer& layer) {
  task.reads.push_back(parts_.lifecycle.weights(layer.main));
  if (layer.norm) task.reads.push_back(parts_.lifecycle.weights(parts_.model.norms));
}

void LayerLoop::check_weights(const model::Parameter& parameter, int step) const {
  const auto& unit = parts_.model.table.unit(parameter.unit);
  const auto values = parameter.weight.to(at::kDouble).flatten();
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    const double expected = initial_weight(unit, parameter.region.offset + i) + step;
    const double found = values[i].item<double>();
    require(found == expected, fmt::format("{}: weight {} is {}, not {}", unit.name, i, found, expected));
  }
}

void LayerLoop::forward(int index, int microbatch) {
  const auto& layer = parts_.model.layers[index];
  parts_.lifecycle.unshard(layer.main);
  if (layer.norm) parts_.lifecycle.unshard(parts_.model.norms);
  auto task = compute_task(fmt::format("F {} m{}", parts_.model.table.unit(layer.main).name, microbatch));
  read_weights(task, layer);
  task.body = [this, &layer, step = step_](stream::TaskScope&) {
    for (const auto* parameter : layer.parameters) check_weights(*parameter, step);
    if (layer.norm) check_weights(*layer.norm, step);
  };
  parts_.scheduler.submit(std::move(task));
  if (parts_.reshards) parts_.lifecycle.reshard(layer.main);
}

void LayerLoop::backward(int index, int microbatch) {
  const auto& layer = parts_.model.layers[index];
  parts_.lifecycle.unshard(layer.main);
  auto task = compute_task(fmt::format("B {} m{}", parts_.model.table.unit(layer.main).name, microbatch));
  read_weights(task, layer);
  std::vector<UnitId> overwritten;
  const auto contribute = [&](UnitId unit) {
    const auto claims = parts_.sync.contribute(unit);
    task.reads.insert(task.reads.end(), claims.reads.begin(), claims.reads.end());
    task.writes.insert(task.writes.end(), claims.writes.begin(), claims.writes.end());
    if (claims.overwrite) overwritten.push_back(unit);
  };
  contribute(layer.main);
  if (layer.norm) contribute(parts_.model.norms);
  task.body = [this, &layer, overwritten, microbatch, step = step_](stream::TaskScope&) {
    for (UnitId unit : overwritten) parts_.model.store.overwrite_gradients(unit);
    auto parameters = layer.parameters;
    if (layer.norm) parameters.push_back(layer.norm);
    for (auto* parameter : parameters) {
      check_weights(*parameter, step);
      if (parts_.unused(*parameter)) continue;
      auto values = at::empty_like(parameter->grad).flatten();
      for (std::int64_t i = 0; i < values.numel(); ++i) {
        values[i] = contribution(parameter->unit, parameter->region.offset + i, parts_.rank, step, microbatch);
      }
      values = values.view(parameter->grad.sizes());
      if (parameter->next_contribution() == model::kernels::Accumulate::overwrite) {
        parameter->grad.copy_(values);
      } else {
        parameter->grad.add_(values);
      }
    }
  };
  parts_.scheduler.submit(std::move(task));
  if (parts_.reshards) parts_.lifecycle.reshard(layer.main);
}

bool LayerLoop::has_gradient(const shard::FlatUnit& unit, std::int64_t index) const {
  for (const auto& region : unit.regions) {
    if (index >= region.offset && index < region.offset + shard::numel(region.shape))
      return !parts_.unused(*parts_.model.store.find(unit.id, region.offset));
  }
  return false;
}

void LayerLoop::optimizer_step(optim::ShardState& shard, int microbatches) {
  const auto& unit = parts_.model.table.unit(shard.unit);
  auto task = compute_task("STEP " + unit.name);
  task.reads.push_back(parts_.store.gradient(shard.unit));
  task.writes.push_back(parts_.store.next_weights(shard.unit));
  task.body = [this, &shard, &unit, microbatches, step = step_](stream::TaskScope&) {
    for (std::int64_t i = 0; i < shard.grad.numel(); ++i) {
      const std::int64_t index = shard.begin + i;
      double expected = 0;
      for (int rank = 0; has_gradient(unit, index) && rank < parts_.ranks; ++rank) {
        for (int m = 0; m < microbatches; ++m) expected += contribution(unit.id, index, rank, step, m);
      }
      const double found = shard.grad[i].item<double>();
      require(found == expected,
              fmt::format("{} step {}: gradient {} is {}, not {}", unit.name, step, index, found, expected));
      if (is_used(unit, index)) shard.master[i] += 1;
    }
    if (!shard.weight.is_same(shard.master)) shard.weight.copy_(shard.master);
  };
  parts_.scheduler.submit(std::move(task));
}

void LayerLoop::step(int microbatches) {
  const auto& model = parts_.model;
  const int layers = static_cast<int>(model.layers.size());
  for (int m = 0; m < microbatches; ++m) {
    for (int i = 0; i < layers; ++i) forward(i, m);
    for (int i = layers - 1; i >= 0; --i) {
      backward(i, m);
      const UnitId unit = model.layers[i].main;
      const bool alternates = parts_.gradients == Residency::layer && model.table.unit(unit).kind == UnitKind::block;
      const bool last = m + 1 == microbatches;
      if (alternates || last) parts_.sync.reduce(unit, last);
    }
  }
  parts_.sync.reduce(model.norms, true);
  for (auto& shard : parts_.store.shards()) optimizer_step(shard, microbatches);
  ++step_;
}

void LayerLoop::validate() {
  for (int i = 0; i < static_cast<int>(parts_.model.layers.size()); ++i) forward(i, 0);
}

}  // namespace orthant::tests
