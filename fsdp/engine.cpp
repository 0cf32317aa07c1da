// SPDX-License-Identifier: Apache-2.0
#include <orthant/fsdp/engine.hpp>

#include <utility>

#include <ATen/ops/zeros.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/model/tensor_span.hpp>
#include <orthant/fsdp/buffers.hpp>

namespace orthant::fsdp {
namespace {

using model::span_of;
using stream::content_of;

stream::Content weights_content(UnitId unit, std::int64_t step) { return content_of("weights", unit.value, step); }
stream::Content reduced_content(UnitId unit, std::int64_t serial) { return content_of("reduced", unit.value, serial); }

}  // namespace

Engine::Engine(const shard::ParameterTable& table, model::ParameterStore& store, stream::Scheduler& scheduler,
               Lanes lanes, const optim::InitialWeights& initial, Options options)
    : scheduler_(scheduler), lanes_(lanes), cost_us_(std::move(options.cost_us)) {
  const int degree = lanes_.reduce.collectives->size(), rank = lanes_.reduce.collectives->rank();
  invariant(lanes_.gather.collectives->size() == degree && lanes_.gather.collectives->rank() == rank,
            "fsdp: gather and reduce lanes are over one axis");
  const at::TensorOptions precision(model::scalar_type(options.precision));
  const at::TensorOptions wide(optim::master_type(model::scalar_type(options.precision)));

  for (const BufferPlan& plan : plan_buffers(table, options.residency, options.alternating_buffers)) {
    const std::int64_t numel = table.unit(plan.units.front()).padded_numel(degree);
    weights_.push_back({at::zeros({numel}, precision), scheduler_.add_buffer(plan.name + " weights")});
    grads_.push_back({at::zeros({numel}, wide), scheduler_.add_buffer(plan.name + " gradient")});
    for (UnitId id : plan.units) units_[id].buffer = static_cast<int>(weights_.size()) - 1;
  }

  stream::Task first{.name = "INIT", .stream = lanes_.gather.stream, .start = [] { return stream::Work::done(); }};
  for (const shard::FlatUnit& flat : table.units()) {
    Unit& unit = at(flat.id);
    const auto& weights = weights_[unit.buffer].memory;
    const auto& grads = grads_[unit.buffer].memory;
    store.bind(flat.id, weights, grads);
    for (const auto& gap : gaps(flat, grads.numel())) unit.gaps.push_back(grads.narrow(0, gap.begin, gap.length()));

    const std::int64_t count = flat.shard_numel(degree);
    auto shard = optim::make_shard(flat, rank * count, weights.scalar_type(), at::zeros({count}, wide));
    optim::initialise(shard, flat, initial);
    unit.name = flat.name;
    unit.shard = shards_.size();
    unit.shard_weights = scheduler_.add_buffer(flat.name + " weight shard");
    unit.shard_grad = scheduler_.add_buffer(flat.name + " gradient shard");
    shards_.push_back(std::move(shard));
    first.writes.push_back({unit.shard_weights, weights_content(flat.id, 0)});
  }
  scheduler_.submit(std::move(first));
}

double Engine::cost_us(const Buffer& buffer) const {
  return cost_us_ ? cost_us_(static_cast<std::int64_t>(buffer.memory.nbytes())) : 0.0;
}

void Engine::unshard(UnitId id) {
  Unit& unit = at(id);
  Buffer& buffer = weights_[unit.buffer];
  const stream::Claim whole = weights(id);
  if (std::exchange(buffer.content, whole.content) == whole.content) return;
  scheduler_.submit(
      {.name = "AG " + unit.name,
       .stream = lanes_.gather.stream,
       .reads = {{unit.shard_weights, whole.content}},
       .writes = {whole},
       .start = [shard = shards_[unit.shard].weight, full = buffer.memory,
                 group = lanes_.gather.collectives] { return group->all_gather(span_of(shard), span_of(full)); },
       .cost_us = cost_us(buffer)});
}

void Engine::reshard(UnitId id) { weights_[at(id).buffer].content = 0; }

stream::Claim Engine::weights(UnitId id) const {
  const Unit& unit = units_.at(id);
  return {weights_[unit.buffer].id, weights_content(id, unit.step)};
}

/// Each contribution makes a new content, so that no contribution can be left out of the claims unnoticed.
stream::Claim Engine::unreduced(UnitId id) const {
  const Unit& unit = units_.at(id);
  return {grads_[unit.buffer].id, content_of("gradient", id.value, unit.serial, unit.contributions)};
}

Engine::Claims Engine::contribute(UnitId id) {
  Unit& unit = at(id);
  const stream::Claim before = unreduced(id);
  ++unit.contributions;
  const stream::Claim after = unreduced(id);
  if (unit.contributions == 1) return {.reads = {}, .writes = {after}, .overwrite = true};
  return {.reads = {before}, .writes = {after}, .overwrite = false};
}

void Engine::reduce(UnitId id) {
  Unit& unit = at(id);
  invariant(unit.contributions > 0, "fsdp: reduce() wants a contribution since the last one");
  const Buffer& buffer = grads_[unit.buffer];
  stream::Task task{.name = "RS " + unit.name, .stream = lanes_.reduce.stream, .cost_us = cost_us(buffer)};
  task.reads.push_back(unreduced(id));
  const bool accumulate = std::exchange(unit.reduced, true);
  if (accumulate) task.reads.push_back(gradient(id));
  ++unit.serial;
  unit.contributions = 0;
  task.writes.push_back(gradient(id));
  task.start = [full = buffer.memory, gaps = unit.gaps, shard = shards_[unit.shard].grad,
                group = lanes_.reduce.collectives, into = accumulate ? comm::Into::accumulate : comm::Into::replace] {
    // A back end may have used the buffer as scratch when another unit was reduced out of it.
    for (const at::Tensor& gap : gaps) gap.zero_();
    return group->reduce_scatter(span_of(full), span_of(shard), into);
  };
  scheduler_.submit(std::move(task));
}

stream::Claim Engine::gradient(UnitId id) const {
  const Unit& unit = units_.at(id);
  return {unit.shard_grad, reduced_content(id, unit.serial - 1)};
}

stream::Claim Engine::next_weights(UnitId id) {
  Unit& unit = at(id);
  unit.reduced = false;
  return {unit.shard_weights, weights_content(id, ++unit.step)};
}

}  // namespace orthant::fsdp
