// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/executor.hpp>

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

const char* name_of(Payload payload) { return payload == Payload::activation ? "activation" : "gradient"; }

void append(std::vector<stream::Claim>& claims, const std::vector<stream::Claim>& more) {
  claims.insert(claims.end(), more.begin(), more.end());
}

}  // namespace

Executor::Executor(ExecutorParts parts)
    : parts_(std::move(parts)),
      activations_{Payload::activation, parts_.links.receive_activation, parts_.links.send_activation, {}, {}},
      gradients_{Payload::gradient, parts_.links.receive_gradient, parts_.links.send_gradient, {}, {}} {
  for (Flow* flow : {&activations_, &gradients_}) {
    for (int i = 0; i < parts_.slots; ++i) {
      flow->slots.push_back(parts_.scheduler.add_buffer(fmt::format("{} slot {}", name_of(flow->payload), i)));
    }
  }
}

void Executor::submit(std::span<const LayerTask> tasks) {
  ++pass_;
  for (const LayerTask& task : tasks) {
    switch (task.kind) {
      case OpKind::forward:
      case OpKind::backward:
      case OpKind::backward_input:
      case OpKind::backward_weight:
        compute(task);
        break;
      case OpKind::receive_activation:
      case OpKind::receive_gradient:
        receive(flow_of(task.kind), task.microbatch);
        break;
      case OpKind::send_activation:
      case OpKind::send_gradient:
        send(flow_of(task.kind), task.microbatch);
        break;
      case OpKind::unshard:
        parts_.lifecycle.unshard(task.unit);
        break;
      case OpKind::reshard:
        parts_.lifecycle.reshard(task.unit);
        break;
      case OpKind::reduce:
        parts_.grads.reduce(task.unit);
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

Executor::Flow& Executor::flow_of(OpKind kind) {
  const bool forward = kind == OpKind::forward || kind == OpKind::send_activation || kind == OpKind::receive_activation;
  return forward ? activations_ : gradients_;
}

stream::Claim Executor::slot(Flow& flow, MicrobatchId microbatch) {
  const auto index = static_cast<std::size_t>(microbatch.value) % flow.slots.size();
  return {flow.slots[index], content_of("slot", pass_, microbatch.value)};
}

stream::Claim Executor::cargo(Flow& flow, MicrobatchId microbatch, const char* state) {
  while (static_cast<int>(flow.cargo.size()) <= microbatch.value) {
    flow.cargo.push_back(
        parts_.scheduler.add_buffer(fmt::format("{} of m{}", name_of(flow.payload), flow.cargo.size())));
  }
  return {flow.cargo[static_cast<std::size_t>(microbatch.value)], content_of(state, pass_)};
}

// The program's place for the micro-batch is taken from the message that comes in (or from the first layer, where none
// does) to the message that goes out. The layers between first and last need no claims: they follow each other on one
// stream.
void Executor::claim_cargo(const LayerTask& task, stream::Task& submitted) {
  if (task.kind == OpKind::backward_weight) return;
  Flow& flow = flow_of(task.kind);
  const bool receives = flow.in.channel != nullptr, sends = flow.out.channel != nullptr;
  if (!receives && !sends) return;
  if (task.opens && receives) submitted.reads.push_back(slot(flow, task.microbatch));
  if (task.opens && !receives && !task.closes) submitted.writes.push_back(cargo(flow, task.microbatch, "in"));
  if (task.closes && (receives || !task.opens)) submitted.reads.push_back(cargo(flow, task.microbatch, "in"));
  if (task.closes && sends) submitted.writes.push_back(cargo(flow, task.microbatch, "out"));
}

void Executor::compute(const LayerTask& task) {
  const Phase phase = phase_of(task.kind);
  train::StageProgram::Outline outline = parts_.program.outline(phase, task.layer);
  stream::Task submitted;
  submitted.name =
      fmt::format("{} {}", to_text(Op{task.kind, task.stage, task.microbatch}), parts_.layer_name(task.layer));
  submitted.stream = parts_.compute;
  submitted.nested = std::move(outline.nested);
  submitted.segments = std::move(outline.segments);
  claim_cargo(task, submitted);
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
  train::StageProgram::Step step{.phase = phase, .layer = task.layer, .microbatch = task.microbatch};
  if (makes_weight_gradient(task.kind)) step.overwrite_main = contribute(task.unit);
  if (makes_input_gradient(task.kind) && has_norms) step.overwrite_norms = contribute(task.norms);
  submitted.body = [&program = parts_.program, step](stream::TaskScope& scope) { program.run(step, scope); };
  parts_.scheduler.submit(std::move(submitted));
}

// Memory is made when the receive starts, not when it is submitted: a whole step is submitted long before it runs.
// Writing the cargo makes the next pass wait until this pass's message has left.
void Executor::receive(Flow& flow, MicrobatchId microbatch) {
  stream::Task task;
  task.name = fmt::format("RECV {} m{}", name_of(flow.payload)[0], microbatch.value);
  task.stream = flow.in.stream;
  task.writes = {slot(flow, microbatch), cargo(flow, microbatch, "in")};
  task.start = [&program = parts_.program, channel = flow.in.channel, payload = flow.payload, microbatch,
                held = std::make_shared<Held>()] {
    *held = program.make_input(payload, microbatch);
    return channel->receive(held->span);
  };
  parts_.scheduler.submit(std::move(task));
}

void Executor::send(Flow& flow, MicrobatchId microbatch) {
  stream::Task task;
  task.name = fmt::format("SEND {} m{}", name_of(flow.payload)[0], microbatch.value);
  task.stream = flow.out.stream;
  task.reads = {cargo(flow, microbatch, "out")};
  task.start = [&program = parts_.program, channel = flow.out.channel, payload = flow.payload, microbatch,
                held = std::make_shared<Held>()] {
    *held = program.take_output(payload, microbatch);
    return channel->send(held->span);
  };
  parts_.scheduler.submit(std::move(task));
}

}  // namespace orthant::pipeline
