// SPDX-License-Identifier: Apache-2.0
#include <orthant/fsdp/baselines/copying_engine.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>

namespace orthant::fsdp::baselines {
namespace {

using stream::Clock;
using stream::content_of;
using Microseconds = std::chrono::duration<double, std::micro>;

stream::Content gradient_content(UnitId unit, std::int64_t serial) {
  return content_of("gradient", unit.value, serial);
}
stream::Content reduced_content(UnitId unit, std::int64_t serial) { return content_of("reduced", unit.value, serial); }

comm::Span span_of(std::vector<float>& memory) {
  return {memory.data(), static_cast<std::int64_t>(memory.size()), DType::f32};
}

}  // namespace

CopyingEngine::CopyingEngine(stream::Scheduler& scheduler, comm::Lane gather, comm::Lane reduce, CopyingOptions options)
    : scheduler_(scheduler),
      gather_(gather),
      reduce_(reduce),
      options_(std::move(options)),
      timer_(std::make_shared<stream::Timer>()) {
  invariant(options_.slots >= 1, "fsdp/baselines: at least one slot");
  const std::int64_t whole = options_.shard_numel * gather_.collectives->size();
  for (int i = 0; i < options_.slots; ++i) {
    slots_.push_back({.weights = make_buffer(fmt::format("slot {} weights", i), whole),
                      .grads = make_buffer(fmt::format("slot {} gradient", i), whole)});
  }
  landing_ = make_buffer("landing", whole);
  bucket_ = make_buffer("bucket", whole);

  stream::Task first{.name = "INIT", .stream = gather_.stream, .start = [] { return stream::Work::done(); }};
  for (const std::string& name : options_.units) {
    units_.push_back({.weight = make_buffer(name + " weight shard", options_.shard_numel),
                      .grad = make_buffer(name + " gradient shard", options_.shard_numel)});
    const UnitId id{static_cast<int>(units_.size()) - 1};
    first.writes.push_back({unit(id).weight.id, weights(id).content});
  }
  scheduler_.submit(std::move(first));
}

CopyingEngine::Buffer CopyingEngine::make_buffer(const std::string& name, std::int64_t numel) {
  return {std::make_shared<std::vector<float>>(static_cast<std::size_t>(numel)), scheduler_.add_buffer(name)};
}

void CopyingEngine::submit_copy(const Copy& copy, stream::StreamId stream) {
  scheduler_.submit({.name = copy.name,
                     .stream = stream,
                     .reads = {{copy.from.id, copy.content}},
                     .writes = {{copy.to.id, copy.content}},
                     .start =
                         [from = copy.from.memory, to = copy.to.memory, timer = timer_,
                          end = Microseconds(copy.cost_us), copied = stream::Promise(copy.name)] {
                           const auto begin = Clock::now();
                           std::ranges::copy(*from, to->begin());
                           timer->at(begin + std::chrono::duration_cast<Clock::duration>(end),
                                     [copied] { copied.complete(); });
                           return copied.work();
                         },
                     .cost_us = copy.cost_us});
}

void CopyingEngine::unshard(UnitId id) {
  const stream::Claim whole = weights(id);
  if (std::exchange(slot(id).content, whole.content) == whole.content) return;
  const bool copies = options_.copy_out_us > 0;
  const Buffer& target = copies ? landing_ : slot(id).weights;
  scheduler_.submit({.name = "AG " + name(id),
                     .stream = gather_.stream,
                     .reads = {{unit(id).weight.id, whole.content}},
                     .writes = {{target.id, whole.content}},
                     .start = [shard = unit(id).weight.memory, full = target.memory, group = gather_.collectives] {
                       return group->all_gather(span_of(*shard), span_of(*full));
                     }});
  if (!copies) return;
  submit_copy({"OUT " + name(id), landing_, slot(id).weights, whole.content, options_.copy_out_us}, gather_.stream);
}

void CopyingEngine::reshard(UnitId id) { slot(id).content = 0; }

stream::Claim CopyingEngine::weights(UnitId id) const {
  return {slot(id).weights.id, content_of("weights", id.value, unit(id).step)};
}

CopyingEngine::Claims CopyingEngine::contribute(UnitId id) {
  return {.reads = {}, .writes = {{slot(id).grads.id, gradient_content(id, unit(id).serial)}}, .overwrite = true};
}

void CopyingEngine::reduce(UnitId id, bool) {
  const bool copies = options_.copy_in_us > 0;
  const stream::Content content = gradient_content(id, unit(id).serial++);
  const Buffer& source = copies ? bucket_ : slot(id).grads;
  if (copies) submit_copy({"IN " + name(id), slot(id).grads, bucket_, content, options_.copy_in_us}, reduce_.stream);
  scheduler_.submit({.name = "RS " + name(id),
                     .stream = reduce_.stream,
                     .reads = {{source.id, content}},
                     .writes = {gradient(id)},
                     .start = [full = source.memory, shard = unit(id).grad.memory, group = reduce_.collectives] {
                       return group->reduce_scatter(span_of(*full), span_of(*shard), comm::Into::replace);
                     }});
}

stream::Claim CopyingEngine::gradient(UnitId id) const {
  return {unit(id).grad.id, reduced_content(id, unit(id).serial - 1)};
}

stream::Claim CopyingEngine::next_weights(UnitId id) {
  const std::int64_t step = ++unit(id).step;
  return {unit(id).weight.id, content_of("weights", id.value, step)};
}

}  // namespace orthant::fsdp::baselines
