// SPDX-License-Identifier: Apache-2.0
#include <orthant/fsdp/engine.hpp>

#include <algorithm>
#include <utility>

#include <ATen/ops/zeros.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/model/kernels/narrow.hpp>
#include <orthant/core/model/tensor_span.hpp>
#include <orthant/fsdp/buffers.hpp>

namespace orthant::fsdp {
namespace {

using model::span_of;
using stream::content_of;
using train::Residency;

stream::Content slice_content(UnitId unit, std::int64_t step) { return content_of("slice", unit.value, step); }
/// A gradient that narrow_in_place() has been at.
comm::Span narrowed(const at::Tensor& gradient) { return {gradient.data_ptr(), gradient.numel(), DType::bf16}; }
stream::Content reduced_content(UnitId unit, std::int64_t serial) { return content_of("reduced", unit.value, serial); }

}  // namespace

Engine::Engine(const shard::ParameterTable& table, model::ParameterStore& store, stream::Scheduler& scheduler,
               Lanes lanes, const optim::InitialWeights& initial, Options options)
    : store_(store), scheduler_(scheduler), lanes_(lanes), options_(std::move(options)) {
  invariant(lanes_.gather.collectives->size() == lanes_.reduce.collectives->size() &&
                lanes_.gather.collectives->rank() == lanes_.reduce.collectives->rank(),
            "fsdp: gather and reduce lanes are over one axis");
  invariant(!options_.keeps_weights || options_.residency.weights == Residency::chunk,
            "fsdp: weights that stay whole take no turns");
  allocate(table);
  stream::Task first{.name = "INIT", .stream = lanes_.gather.stream, .start = [] { return stream::Work::done(); }};
  for (const shard::FlatUnit& flat : table.units()) {
    Unit& unit = at(flat.id);
    store.bind(flat.id, unit.weights, unit.grads);
    add_shard(flat, unit);
    optim::initialise(shards_.back(), flat, initial);
    first.writes.push_back({unit.shard_weights, slice_content(flat.id, 0)});
  }
  scheduler_.submit(std::move(first));
}

void Engine::allocate(const shard::ParameterTable& table) {
  const int degree = lanes_.reduce.collectives->size();
  const at::TensorOptions precision(model::scalar_type(options_.precision));
  const at::TensorOptions wide(optim::master_type(model::scalar_type(options_.precision)));
  for (const BufferPlan& plan : plan_buffers(table, options_.residency.weights, options_.alternating_buffers, degree)) {
    weights_.push_back({at::zeros({plan.numel}, precision), scheduler_.add_buffer(plan.name + " weights")});
    for (const UnitId id : plan.units) {
      units_[id].weight_buffer = static_cast<int>(weights_.size()) - 1;
      units_[id].weights = weights_.back().memory.narrow(0, 0, table.unit(id).padded_numel(degree));
    }
  }
  for (const BufferPlan& plan :
       plan_buffers(table, options_.residency.gradients, options_.alternating_buffers, degree)) {
    if (std::ranges::none_of(plan.units, [&](UnitId id) { return table.unit(id).trains(); })) continue;
    grads_.push_back({at::zeros({plan.numel}, wide), scheduler_.add_buffer(plan.name + " gradient")});
    for (const UnitId id : plan.units) {
      units_[id].grad_buffer = static_cast<int>(grads_.size()) - 1;
      if (table.unit(id).trains()) units_[id].grads = grads_.back().memory.narrow(0, 0, units_[id].weights.numel());
    }
  }
}

/// The rank's slice: apart from the buffers, or a part of them where these hold nothing else.
void Engine::add_shard(const shard::FlatUnit& flat, Unit& unit) {
  const int degree = lanes_.reduce.collectives->size(), rank = lanes_.reduce.collectives->rank();
  const std::int64_t count = flat.shard_numel(degree), begin = rank * count;
  const bool grads_in_place = options_.gradients_in_place();
  optim::ShardSpec spec{.begin = begin,
                        .count = count,
                        .precision = unit.weights.scalar_type(),
                        .moments = model::scalar_type(options_.moments)};
  if (options_.keeps_weights) spec.weight = unit.weights.narrow(0, begin, count);
  if (grads_in_place && flat.trains()) spec.grad = unit.grads.narrow(0, begin, count);
  shards_.push_back(optim::make_shard(flat, spec));
  auto& shard = shards_.back();
  if (lanes_.replica.collectives != nullptr) shard.counted = flat.counted && lanes_.replica.collectives->rank() == 0;

  unit.name = flat.name;
  unit.frozen_steps = flat.frozen_steps;
  unit.shard = shards_.size() - 1;
  unit.shard_weights =
      options_.keeps_weights ? weights_[unit.weight_buffer].id : scheduler_.add_buffer(flat.name + " weight shard");
  if (!flat.trains()) return;
  unit.shard_grad = grads_in_place ? grads_[unit.grad_buffer].id : scheduler_.add_buffer(flat.name + " gradient shard");
  for (const auto& gap : gaps(flat, unit.grads.numel()))
    unit.gaps.push_back(unit.grads.narrow(0, gap.begin, gap.length()));
}

double Engine::cost_us(const at::Tensor& whole) const {
  return options_.cost_us ? options_.cost_us(static_cast<std::int64_t>(whole.nbytes())) : 0.0;
}

void Engine::unshard(UnitId id) {
  Unit& unit = at(id);
  const stream::Claim whole = weights(id);
  stream::Content& content = weights_[unit.weight_buffer].content;
  if (content == whole.content) return;
  const stream::Claim source = slice(id);
  content = whole.content;
  scheduler_.submit(
      {.name = "AG " + unit.name,
       .stream = lanes_.gather.stream,
       .reads = {source},
       .writes = {whole},
       .start = [shard = shards_[unit.shard].weight, full = unit.weights,
                 group = lanes_.gather.collectives] { return group->all_gather(span_of(shard), span_of(full)); },
       .cost_us = cost_us(unit.weights)});
}

void Engine::reshard(UnitId id) {
  if (!options_.keeps_weights) weights_[at(id).weight_buffer].content = 0;
}

stream::Claim Engine::weights(UnitId id) const {
  const Unit& unit = units_.at(id);
  return {weights_[unit.weight_buffer].id, content_of("weights", id.value, unit.step)};
}

stream::Claim Engine::slice(UnitId id) const {
  const Unit& unit = units_.at(id);
  const stream::Claim whole = weights(id);
  const bool is_part_of_whole = options_.keeps_weights && weights_[unit.weight_buffer].content == whole.content;
  return is_part_of_whole ? whole : stream::Claim{unit.shard_weights, slice_content(id, unit.step)};
}

stream::Claim Engine::next_weights(UnitId id) {
  Unit& unit = at(id);
  unit.reduced = false;
  ++unit.step;
  return {unit.shard_weights, slice_content(id, unit.step)};
}

/// Each contribution makes a new content, so that no contribution can be left out of the claims unnoticed.
stream::Claim Engine::unreduced(UnitId id) const {
  const Unit& unit = units_.at(id);
  return {grads_[unit.grad_buffer].id, content_of("gradient", id.value, unit.serial, unit.contributions)};
}

Engine::Claims Engine::contribute(UnitId id) {
  Unit& unit = at(id);
  invariant(trains(id), "fsdp: a contribution to a unit that is frozen");
  const stream::Claim before = unreduced(id);
  ++unit.contributions;
  const stream::Claim after = unreduced(id);
  if (unit.contributions == 1) return {.reads = {}, .writes = {after}, .overwrite = true};
  return {.reads = {before}, .writes = {after}, .overwrite = false};
}

/// Before the gradient is given away: what no contribution has written holds another unit's data, or what a back end
/// left there when it used the buffer as scratch.
void Engine::zero_unused(UnitId id) {
  store_.zero_unwritten(id);
  for (const at::Tensor& gap : at(id).gaps) gap.zero_();
}

/// In place and on the compute stream: no copy delays what travels.
stream::Claim Engine::cast_to_wire(UnitId id, stream::Claim gradient) {
  const Unit& unit = at(id);
  const stream::Claim narrow{gradient.buffer, content_of("wire", id.value, unit.serial)};
  scheduler_.submit({.name = "CAST " + unit.name,
                     .stream = lanes_.compute,
                     .reads = {gradient},
                     .writes = {narrow},
                     .body = [this, id, grads = unit.grads](stream::TaskScope&) {
                       zero_unused(id);
                       model::kernels::narrow_in_place(grads);
                     }});
  return narrow;
}

void Engine::reduce(UnitId id, bool last) {
  if (!trains(id)) return;
  Unit& unit = at(id);
  invariant(unit.contributions > 0, "fsdp: reduce() wants a contribution since the last one");
  stream::Task task{.name = "RS " + unit.name, .stream = lanes_.reduce.stream, .cost_us = cost_us(unit.grads)};
  task.reads.push_back(options_.narrows() ? cast_to_wire(id, unreduced(id)) : unreduced(id));
  const bool accumulate = std::exchange(unit.reduced, true);
  if (accumulate) task.reads.push_back(gradient(id));
  ++unit.serial;
  unit.contributions = 0;
  task.writes.push_back(gradient(id));
  task.start = [this, id, full = unit.grads, shard = shards_[unit.shard].grad,
                into = accumulate ? comm::Into::accumulate : comm::Into::replace] {
    if (!options_.narrows()) zero_unused(id);
    return lanes_.reduce.collectives->reduce_scatter(options_.narrows() ? narrowed(full) : span_of(full),
                                                     span_of(shard), into);
  };
  scheduler_.submit(std::move(task));
  if (last && lanes_.replica.collectives != nullptr) sum_over_replicas(unit, gradient(id));
}

void Engine::sum_over_replicas(const Unit& unit, stream::Claim gradient) {
  scheduler_.submit({.name = "AR replicas " + unit.name,
                     .stream = lanes_.replica.stream,
                     .reads = {gradient},
                     .writes = {gradient},
                     .start = [shard = shards_[unit.shard].grad, group = lanes_.replica.collectives] {
                       return group->all_reduce(span_of(shard), comm::Reduction::sum);
                     }});
}

stream::Claim Engine::gradient(UnitId id) const {
  const Unit& unit = units_.at(id);
  return {unit.shard_grad, reduced_content(id, unit.serial - 1)};
}

}  // namespace orthant::fsdp
