// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/execute/executor.hpp>

#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>

namespace orthant::pipeline {
namespace {

using stream::content_of;
using train::Held;
using train::Payload;

Phase phase_of(OpKind kind) {
  switch (kind) {
    case OpKind::forward:
      return Phase::forward;
    case OpKind::backward:
      return Phase::backward;
    case OpKind::backward_input:
      return Phase::backward_input;
    case OpKind::backward_weight:
      return Phase::backward_weight;
    default:
      throw InternalError(fmt::format("{} is no computation", letters(kind)));
  }
}

Payload payload_of(OpKind kind) {
  const bool forward = kind == OpKind::forward || kind == OpKind::send_activation || kind == OpKind::receive_activation;
  return forward ? Payload::activation : Payload::gradient;
}

const char* name_of(Payload payload) { return payload == Payload::activation ? "activation" : "gradient"; }

void append(std::vector<stream::Claim>& claims, const std::vector<stream::Claim>& more) {
  claims.insert(claims.end(), more.begin(), more.end());
}

/// The B of the overlapped pair whose F begins at `f`.
const LayerTask* partner_of(std::span<const LayerTask> tasks, std::size_t f) {
  const auto rest = tasks.subspan(f);
  const auto partner =
      std::ranges::find_if(rest, [](const LayerTask& task) { return is_compute(task.kind) && !task.joins_next; });
  invariant(partner != rest.end() && makes_input_gradient(partner->kind), "a pair has no backward");
  return &*partner;
}

}  // namespace

Executor::Executor(ExecutorParts parts)
    : parts_(std::move(parts)), progress_(parts_.scheduler.add_buffer("compute progress")) {
  for (const auto& [place, route] : parts_.routes) {
    if (!route.receives()) continue;
    Inbox& inbox = inboxes_[route.in.channel];
    for (int i = static_cast<int>(inbox.slots.size()); i < parts_.slots; ++i) {
      inbox.slots.push_back(parts_.scheduler.add_buffer(fmt::format("{} slot {}", route.in.channel->name(), i)));
    }
  }
}

void Executor::begin(PassKind kind) {
  ++pass_;
  kind_ = kind;
}

void Executor::submit(std::span<const LayerTask> tasks) {
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const LayerTask& task = tasks[i];
    switch (task.kind) {
      case OpKind::forward:
      case OpKind::backward:
      case OpKind::backward_input:
      case OpKind::backward_weight:
        compute(task, task.joins_next && task.opens ? partner_of(tasks, i) : nullptr);
        break;
      case OpKind::receive_activation:
      case OpKind::receive_gradient:
        receive({payload_of(task.kind), task.stage, task.microbatch});
        break;
      case OpKind::send_activation:
      case OpKind::send_gradient:
        send({payload_of(task.kind), task.stage, task.microbatch});
        break;
      case OpKind::unshard:
        parts_.lifecycle.unshard(task.unit);
        break;
      case OpKind::reshard:
        parts_.lifecycle.reshard(task.unit);
        break;
      case OpKind::reduce:
        parts_.grads.reduce(task.unit, task.closes);
        break;
      case OpKind::norm_units:
      case OpKind::tie:
      case OpKind::norm:
      case OpKind::step:
        parts_.tail(task);
        break;
    }
  }
}

stream::Claim Executor::cargo(const Place& place, const char* state) {
  auto [entry, is_new] = cargo_.try_emplace(place);
  const auto& [payload, stage, microbatch] = place;
  if (is_new) {
    entry->second =
        parts_.scheduler.add_buffer(fmt::format("{} of s{} m{}", name_of(payload), stage.value, microbatch.value));
  }
  return {entry->second, content_of(state, pass_)};
}

/// Frees the message's slot at the moment when its reader could begin, not when it has ended: the next message of the
/// channel travels while this one is worked on.
void Executor::take(const Place& place) {
  if (late_.erase(place) > 0) post_receive(place);
  const auto message = unread_.extract(place);
  if (message.empty()) return;
  parts_.scheduler.submit(
      {.name = "TAKE", .stream = parts_.compute, .reads = {message.mapped()}, .body = [](stream::TaskScope&) {}});
}

// The program's place for the micro-batch is taken from the message that comes in (or from the first layer, where none
// does) to the message that goes out. The layers between first and last need no claims: they follow each other on one
// stream. Of a pair, both outputs are there when its B has ended.
void Executor::claim_cargo(const LayerTask& task, stream::Task& submitted) {
  if (task.kind == OpKind::backward_weight) return;
  const Place place{payload_of(task.kind), task.stage, task.microbatch};
  const Route& route = parts_.routes.at({task.stage, payload_of(task.kind)});
  const bool comes = route.receives() || route.handed_from.value >= 0;
  if (task.closes && !task.joins_next && joined_) {
    const auto [f_payload, f_stage, microbatch] = *joined_;
    if (parts_.routes.at({f_stage, f_payload}).gives()) submitted.writes.push_back(cargo(*joined_, "out"));
    joined_.reset();
  }
  if (!comes && !route.gives()) return;
  if (task.opens && route.handed_from.value >= 0) {
    submitted.reads.push_back(cargo({payload_of(task.kind), route.handed_from, task.microbatch}, "out"));
  }
  if (task.opens && !route.receives() && !task.closes) submitted.writes.push_back(cargo(place, "in"));
  if (task.closes && (route.receives() || !task.opens)) submitted.reads.push_back(cargo(place, "in"));
  if (task.closes && task.joins_next) {
    joined_ = place;
  } else if (task.closes && route.gives()) {
    submitted.writes.push_back(cargo(place, "out"));
  }
}

/// A chain through all computations, which a late receive hangs on to.
void Executor::claim_progress(stream::Task& submitted) {
  if (!parts_.late_receives) return;
  if (computations_ > 0) submitted.reads.push_back({progress_, content_of("computation", computations_)});
  submitted.writes.push_back({progress_, content_of("computation", ++computations_)});
}

void Executor::drop_unread() {
  while (!unread_.empty()) {
    const Place place = unread_.begin()->first;
    take(place);
    parts_.scheduler.submit({.name = "DROP",
                             .stream = parts_.compute,
                             .reads = {cargo(place, "in")},
                             .body = [&program = parts_.program, place](stream::TaskScope&) {
                               std::apply([&](auto... of) { program.take_output(of...); }, place);
                             }});
  }
}

void Executor::count_activation(StageId stage, MicrobatchId microbatch, bool begins) {
  if (begins) {
    live_.emplace(stage, microbatch);
  } else {
    live_.erase({stage, microbatch});
  }
  peak_ = std::max(peak_.load(), static_cast<int>(live_.size()));
}

void Executor::compute(const LayerTask& task, const LayerTask* partner) {
  const Phase phase = phase_of(task.kind);
  const Payload payload = payload_of(task.kind);
  if (task.opens && task.kind != OpKind::backward_weight) {
    take({payload, task.stage, task.microbatch});
    if (partner != nullptr) take({payload_of(partner->kind), partner->stage, partner->microbatch});
  }
  train::StageProgram::Outline outline = parts_.program.outline(phase, task.layer);
  stream::Task submitted;
  submitted.name =
      fmt::format("{} {}", to_text(Op{task.kind, task.stage, task.microbatch}), parts_.layer_name(task.layer));
  submitted.stream = parts_.compute;
  submitted.nested = std::move(outline.nested);
  submitted.segments = std::move(outline.segments);
  claim_cargo(task, submitted);
  claim_progress(submitted);
  const bool has_norms = task.norms.value >= 0;
  if (reads_weights(task.kind)) {
    submitted.reads.push_back(parts_.lifecycle.weights(task.unit));
    if (has_norms) submitted.reads.push_back(parts_.lifecycle.weights(task.norms));
  }
  const auto contribute = [&](UnitId unit) {
    const train::GradSync::Claims claims = parts_.grads.contribute(unit);
    append(submitted.reads, claims.reads);
    append(submitted.writes, claims.writes);
    return claims.overwrite;
  };
  train::StageProgram::Step step{
      .phase = phase, .stage = task.stage, .layer = task.layer, .microbatch = task.microbatch};
  step.main_trains = parts_.grads.trains(task.unit);
  step.norms_train = has_norms && parts_.grads.trains(task.norms);
  if (makes_weight_gradient(task.kind) && step.main_trains) step.overwrite_main = contribute(task.unit);
  if (makes_input_gradient(task.kind) && step.norms_train) step.overwrite_norms = contribute(task.norms);
  const StageId handed_from = task.opens && task.kind != OpKind::backward_weight
                                  ? parts_.routes.at({task.stage, payload}).handed_from
                                  : StageId{};
  const bool begins = kind_ == PassKind::training && task.opens && task.kind == OpKind::forward;
  const bool ends = task.closes && makes_input_gradient(task.kind);
  submitted.body = [this, step, payload, handed_from, begins, ends](stream::TaskScope& scope) {
    if (begins) count_activation(step.stage, step.microbatch, true);
    if (handed_from.value >= 0) parts_.program.hand_over(payload, handed_from, step.stage, step.microbatch);
    parts_.program.run(step, scope);
    if (ends) count_activation(step.stage, step.microbatch, false);
  };
  parts_.scheduler.submit(std::move(submitted));
}

void Executor::receive(const Place& place) {
  if (parts_.late_receives) {
    late_.insert(place);
  } else {
    post_receive(place);
  }
}

// Memory is made when the receive starts, not when it is submitted: a whole step is submitted long before it runs.
// Writing the cargo makes the next pass wait until this pass's message has left.
void Executor::post_receive(const Place& place) {
  const auto& [payload, stage, microbatch] = place;
  const comm::ChannelLane& lane = parts_.routes.at({stage, payload}).in;
  Inbox& inbox = inboxes_.at(lane.channel);
  const auto number = inbox.received++;
  const stream::Claim slot{inbox.slots[static_cast<std::size_t>(number) % inbox.slots.size()],
                           content_of("slot", number)};
  unread_.emplace(place, slot);
  stream::Task task;
  task.name = fmt::format("RECV {} s{} m{}", name_of(payload)[0], stage.value, microbatch.value);
  task.stream = lane.stream;
  task.writes = {slot, cargo(place, "in")};
  if (parts_.late_receives && computations_ > 0)
    task.reads.push_back({progress_, content_of("computation", computations_)});
  task.start = [&program = parts_.program, channel = lane.channel, place, held = std::make_shared<Held>()] {
    *held = std::apply([&](auto... of) { return program.make_input(of...); }, place);
    return channel->receive(held->span);
  };
  parts_.scheduler.submit(std::move(task));
}

void Executor::send(const Place& place) {
  const auto& [payload, stage, microbatch] = place;
  const comm::ChannelLane& lane = parts_.routes.at({stage, payload}).out;
  stream::Task task;
  task.name = fmt::format("SEND {} s{} m{}", name_of(payload)[0], stage.value, microbatch.value);
  task.stream = lane.stream;
  task.reads = {cargo(place, "out")};
  task.start = [&program = parts_.program, channel = lane.channel, place, held = std::make_shared<Held>()] {
    *held = std::apply([&](auto... of) { return program.take_output(of...); }, place);
    return channel->send(held->span);
  };
  parts_.scheduler.submit(std::move(task));
}

}  // namespace orthant::pipeline
