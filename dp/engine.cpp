// SPDX-License-Identifier: Apache-2.0
#include <orthant/dp/engine.hpp>

#include <algorithm>
#include <utility>

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/model/tensor_span.hpp>

namespace orthant::dp {
namespace {

using stream::content_of;

stream::Content weights_content(UnitId unit, std::int64_t step) { return content_of("weights", unit.value, step); }
stream::Content reduced_content(UnitId unit, std::int64_t serial) { return content_of("reduced", unit.value, serial); }

std::string bucket_name(int index, const Bucket& bucket, const shard::ParameterTable& table) {
  const auto& first = table.unit(bucket.members.front().unit).name;
  if (bucket.members.size() == 1) return fmt::format("AR bucket {} ({})", index, first);
  return fmt::format("AR bucket {} ({} … {})", index, first, table.unit(bucket.members.back().unit).name);
}

}  // namespace

Engine::Engine(const shard::ParameterTable& table, model::ParameterStore& store, stream::Scheduler& scheduler,
               comm::Lane reduce, const optim::InitialWeights& initial, Options options)
    : store_(store), scheduler_(scheduler), lane_(reduce), cost_us_(std::move(options.cost_us)) {
  const at::ScalarType precision = model::scalar_type(options.precision);
  const at::ScalarType wide = optim::master_type(precision);
  const auto buckets = make_buckets(table, options.bucket_bytes / static_cast<std::int64_t>(c10::elementSize(wide)));
  const auto grads = at::zeros({buckets.empty() ? 0 : buckets.back().elements().end}, at::TensorOptions(wide));

  std::unordered_map<UnitId, shard::Range> places;
  for (const Bucket& bucket : buckets) {
    const int index = static_cast<int>(buckets_.size());
    const auto [begin, end] = bucket.elements();
    buckets_.push_back({bucket_name(index, bucket, table), bucket, grads.narrow(0, begin, end - begin)});
    for (const auto& member : bucket.members) {
      units_[member.unit].bucket = index;
      places[member.unit] = member.elements;
    }
  }

  stream::Task first{.name = "INIT", .stream = lane_.stream, .start = [] { return stream::Work::done(); }};
  for (const shard::FlatUnit& flat : table.units()) {
    optim::ShardSpec spec{
        .count = flat.padded_numel(1), .precision = precision, .moments = model::scalar_type(options.moments)};
    if (const auto place = places.find(flat.id); place != places.end())
      spec.grad = grads.narrow(0, place->second.begin, place->second.length());
    auto shard = optim::make_shard(flat, spec);
    shard.counted = flat.counted && lane_.collectives->rank() == 0;  // replicas: one of them counts
    optim::initialise(shard, flat, initial);
    store.bind(flat.id, shard.weight, shard.grad);
    shards_.push_back(std::move(shard));

    Unit& unit = units_[flat.id];
    unit.frozen_steps = flat.frozen_steps;
    unit.weights = scheduler_.add_buffer(flat.name + " weights");
    unit.grads = scheduler_.add_buffer(flat.name + " gradient");
    first.writes.push_back(weights(flat.id));
  }
  scheduler_.submit(std::move(first));
}

stream::Claim Engine::weights(UnitId id) const {
  const Unit& unit = units_.at(id);
  return {unit.weights, weights_content(id, unit.step)};
}

/// Each contribution makes a new content, so that no contribution can be left out of the claims unnoticed.
stream::Claim Engine::unreduced(UnitId id) const {
  const Unit& unit = units_.at(id);
  return {unit.grads, content_of("gradient", id.value, unit.serial, unit.contributions)};
}

Engine::Claims Engine::contribute(UnitId id) {
  Unit& unit = at(id);
  invariant(trains(id), "dp: a contribution to a unit that is frozen");
  invariant(!unit.complete, "dp: a contribution to a gradient that was given up for reduction");
  const stream::Claim before = unreduced(id);
  ++unit.contributions;
  const stream::Claim after = unreduced(id);
  if (unit.contributions == 1) return {.reads = {}, .writes = {after}, .overwrite = true};
  return {.reads = {before}, .writes = {after}, .overwrite = false};
}

bool Engine::is_complete(const BucketState& bucket) const {
  return std::ranges::all_of(bucket.plan.members, [&](const Bucket::Member& member) {
    return !trains(member.unit) || units_.at(member.unit).complete;
  });
}

void Engine::reduce(UnitId id, bool) {
  if (!trains(id)) return;
  Unit& unit = at(id);
  invariant(unit.contributions > 0 && !unit.complete, "dp: reduce() wants a contribution since the last one");
  unit.complete = true;
  BucketState& bucket = buckets_[unit.bucket];
  if (is_complete(bucket)) submit(bucket);
}

void Engine::submit(BucketState& bucket) {
  stream::Task task{.name = bucket.name, .stream = lane_.stream};
  std::vector<UnitId> units;
  for (const auto& member : bucket.plan.members) {
    if (!trains(member.unit)) continue;
    Unit& unit = at(member.unit);
    units.push_back(member.unit);
    task.reads.push_back(unreduced(member.unit));
    task.writes.push_back({unit.grads, reduced_content(member.unit, unit.serial)});
    ++unit.serial;
    unit.contributions = 0;
    unit.complete = false;
  }
  task.start = [this, units, grads = bucket.grads, group = lane_.collectives] {
    for (const UnitId unit : units) store_.zero_unwritten(unit);
    return group->all_reduce(model::span_of(grads), comm::Reduction::sum);
  };
  if (cost_us_) task.cost_us = cost_us_(static_cast<std::int64_t>(bucket.grads.nbytes()));
  scheduler_.submit(std::move(task));
}

stream::Claim Engine::gradient(UnitId id) const {
  const Unit& unit = units_.at(id);
  return {unit.grads, reduced_content(id, unit.serial - 1)};
}

stream::Claim Engine::next_weights(UnitId id) {
  Unit& unit = at(id);
  return {unit.weights, weights_content(id, ++unit.step)};
}

}  // namespace orthant::dp
