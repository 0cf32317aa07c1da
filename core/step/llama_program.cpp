// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/step/llama_program.hpp>

#include <algorithm>
#include <chrono>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <orthant/core/model/tensor_span.hpp>

namespace orthant::step {
namespace {

using model::span_of;
using shard::UnitKind;

at::Tensor rows_of_tokens(std::int64_t rows) { return at::empty({rows}, at::TensorOptions(at::kLong)); }

}  // namespace

LlamaProgram::LlamaProgram(const RankSpec& spec, model::LayerFactory& factory, model::Parameters parameters,
                           BatchReader reader)
    : spec_(spec),
      local_rows_(spec.rows.rows() / factory.sequence_shards()),
      first_row_(factory.sequence_shard() * local_rows_),
      store_(parameters.store),
      reader_(std::move(reader)),
      rotary_(model::kernels::rotary_table(spec.rows.seq, spec.model.head_dim, spec.model.rope_theta,
                                           at::TensorOptions(model::scalar_type(spec.precision)))) {
  // In the order of layers, not of stages: the two copies of a mirrored pipeline then lay everything out alike.
  std::ranges::sort(spec_.stages, {}, &StageSpan::first);
  for (const StageSpan& span : spec_.stages) declare_norms(span, parameters.table);
  for (const StageSpan& span : spec_.stages) {
    layouts_.push_back({.stage = span.stage, .layers = {}});
    flows_[span.stage].resize(static_cast<std::size_t>(spec_.microbatches));
    for (int id = span.first.value; id <= span.last.value; ++id) declare_layer(span, LayerId{id}, factory, parameters);
  }
}

/// Norms that do not train at first lie apart from those that do.
UnitId LlamaProgram::norms_of(LayerId layer) const {
  const auto policy = spec_.policies(UnitKind::norms, is_head(layer) ? -1 : layer.value - 1);
  return UnitId{policy.frozen_steps > 0 ? model::UnitIds::frozen_norms(spec_.model)
                                        : model::UnitIds::norms(spec_.model)};
}

void LlamaProgram::declare_norms(const StageSpan& span, shard::ParameterTable& table) {
  for (LayerId layer = span.first; layer <= span.last; ++layer.value) {
    const UnitId unit = norms_of(layer);
    if (is_embedding(layer) || table.has(unit)) continue;
    const auto policy = spec_.policies(UnitKind::norms, is_head(layer) ? -1 : layer.value - 1);
    table.add_unit({.id = unit,
                    .name = policy.frozen_steps > 0 ? "frozen norms" : "norms",
                    .kind = UnitKind::norms,
                    .decays = false,
                    .counted = spec_.counts_mirrored,
                    .tied = spec_.mirrored,
                    .lr_scale = policy.lr_scale,
                    .weight_decay = policy.weight_decay,
                    .frozen_steps = policy.frozen_steps});
  }
}

void LlamaProgram::declare_layer(const StageSpan& span, LayerId layer, model::LayerFactory& factory,
                                 model::Parameters parameters) {
  const auto& config = spec_.model;
  const auto declare_unit = [&](int id, std::string name, UnitKind kind) {
    // A tied weight that lives at both ends of the pipeline is counted in the norm and written to files by the
    // embedding's rank alone.
    const bool tied_here = kind == UnitKind::embedding && spec_.tied_apart;
    if (parameters.table.has(UnitId{id})) return UnitId{id};
    const auto policy = spec_.policies(kind, kind == UnitKind::block ? layer.value - 1 : -1);
    parameters.table.add_unit({.id = UnitId{id},
                               .name = std::move(name),
                               .kind = kind,
                               .counted = spec_.counts_mirrored && !(is_head(layer) && tied_here && !spec_.mirrored),
                               .tied = tied_here || spec_.mirrored,
                               .lr_scale = policy.lr_scale,
                               .weight_decay = policy.weight_decay,
                               .frozen_steps = policy.frozen_steps});
    return UnitId{id};
  };
  const UnitId norms = norms_of(layer);
  Layer& entry = layers_[layer.value];
  entry.span = span;
  entry.states.resize(static_cast<std::size_t>(spec_.microbatches));
  if (is_embedding(layer)) {
    const UnitId unit = declare_unit(model::UnitIds::embedding(), "embedding", UnitKind::embedding);
    embedding_ = factory.embedding(unit, "model.embed_tokens.weight");
    entry.units = {.layer = layer, .main = unit};
  } else if (is_head(layer)) {
    const UnitId unit = declare_unit(model::UnitIds::head(config), config.tie_embeddings ? "embedding" : "head",
                                     config.tie_embeddings ? UnitKind::embedding : UnitKind::head);
    head_.emplace(config, factory, parameters, norms, spec_.rows);
    entry.units = {.layer = layer, .main = unit, .norms = norms};
  } else {
    const UnitId unit =
        declare_unit(model::UnitIds::block(layer.value), fmt::format("layers.{}", layer.value - 1), UnitKind::block);
    entry.block.emplace(config, factory, parameters, layer, norms, spec_.rows);
    if (blocks_++ < spec_.checkpoint.blocks) entry.recompute = spec_.checkpoint.recompute;
    entry.units = {.layer = layer, .main = unit, .norms = norms, .alternating = true};
  }
  std::ranges::find(layouts_, span.stage, &train::StageLayout::stage)->layers.push_back(entry.units);
}

void LlamaProgram::begin(const StepInput& input) {
  input_ = input;
  loss_sum_ = 0;
}

std::int64_t LlamaProgram::count_tokens() {
  std::vector<std::int64_t> inputs(static_cast<std::size_t>(spec_.rows.rows())), targets(inputs.size());
  std::int64_t tokens = 0;
  for (MicrobatchId m{0}; m.value < spec_.microbatches; ++m.value) {
    reader_(input_, m, inputs.data(), targets.data());
    tokens += std::ranges::count_if(targets, [](std::int64_t target) { return target >= 0; });
  }
  return tokens;
}

LlamaProgram::Flow& LlamaProgram::flow(StageId stage, MicrobatchId microbatch) {
  return flows_.at(stage)[static_cast<std::size_t>(microbatch.value)];
}

void LlamaProgram::run(const Step& step, stream::TaskScope& scope) {
  Layer& layer = at(step.layer);
  LayerState& state = layer.states[static_cast<std::size_t>(step.microbatch.value)];
  Flow& data = flow(step.stage, step.microbatch);
  if (step.phase == Phase::forward) state = {};  // a warm-up may be done again
  if (step.phase == Phase::forward && input_.training && spec_.model.dropout > 0) {
    state.pass.dropout = {.seed = spec_.seed,
                          .step = input_.step,
                          .first_sample = spec_.first_sample(step.microbatch),
                          .first_row = first_row_};
  }
  state.pass.scope = &scope;
  state.pass.posted = 0;
  state.pass.weight_us = 0;
  if (step.overwrite_main) store_.overwrite_gradients(layer.units.main);
  if (step.overwrite_norms) store_.overwrite_gradients(layer.units.norms);
  if (step.phase != Phase::forward) {
    store_.set_trains(layer.units.main, step.main_trains);
    if (layer.units.norms.value >= 0) store_.set_trains(layer.units.norms, step.norms_train);
  }
  const auto begin = std::chrono::steady_clock::now();
  run_phase(step, state, data);
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  if (input_.training) costs_.add(step.layer, step.phase, took.count(), std::exchange(state.pass.weight_us, 0));
  if (step.phase == Phase::backward || step.phase == Phase::backward_weight) state = {};
}

void LlamaProgram::run_phase(const Step& step, LayerState& state, Flow& data) {
  switch (step.phase) {
    case Phase::forward:
      return forward(step, state, data);
    case Phase::backward_weight:
      return backward_weight(step, state);
    case Phase::backward_input:
      state.pass.split = true;
      return backward_input(step, state, data);
    case Phase::backward:
      state.pass.split = false;
      backward_input(step, state, data);
      return backward_weight(step, state);
  }
}

void LlamaProgram::read_batch(Flow& flow, MicrobatchId microbatch) {
  flow.inputs = rows_of_tokens(spec_.rows.rows());
  flow.targets = rows_of_tokens(spec_.rows.rows());
  reader_(input_, microbatch, flow.inputs.mutable_data_ptr<std::int64_t>(),
          flow.targets.mutable_data_ptr<std::int64_t>());
}

void LlamaProgram::forward(const Step& step, LayerState& state, Flow& flow) {
  const auto& recompute = at(step.layer).recompute;
  const bool keeps_graph = input_.training && !recompute.block;
  const at::AutoGradMode graph(keeps_graph && !is_embedding(step.layer));
  state.pass.training = keeps_graph;
  if (is_embedding(step.layer)) {
    read_batch(flow, step.microbatch);
    state.input = flow.inputs;
    flow.activation = embedding_->forward(flow.inputs, state.pass);
    return;
  }
  state.input = std::exchange(flow.activation, {}).detach();
  state.input.set_requires_grad(input_.training);
  if (is_head(step.layer)) {
    if (!is_embedding(at(step.layer).span.first)) read_batch(flow, step.microbatch);
    state.output = head_->forward(state.input, flow.targets, state.pass);
    loss_sum_ += state.output.item<double>();
  } else {
    state.output = at(step.layer).block->forward(state.input, state.pass, rotary_, recompute);
    flow.activation = state.output.detach();
  }
  if (!keeps_graph) state.output.reset();
  if (!input_.training) state = {};
}

/// Activation checkpointing: what forward() did not keep, or the whole graph.
void LlamaProgram::make_again(const Step& step, LayerState& state) {
  state.pass.make_again();
  if (!at(step.layer).recompute.block) return;
  const at::AutoGradMode graph(true);
  state.pass.training = true;
  state.output = at(step.layer).block->forward(state.input, state.pass, rotary_);
}

void LlamaProgram::backward_input(const Step& step, LayerState& state, Flow& flow) {
  if (is_embedding(step.layer)) {  // tokens have no gradient: all of its backward is a weight gradient
    state.output_grad = std::exchange(flow.gradient, {});
    return;
  }
  make_again(step, state);
  if (is_head(step.layer)) {
    state.output.backward();
  } else {
    state.output.backward(std::exchange(flow.gradient, {}));
  }
  flow.gradient = state.input.grad();
  state.output.reset();
  state.input.reset();
}

void LlamaProgram::backward_weight(const Step& step, LayerState& state) {
  if (is_embedding(step.layer)) {
    embedding_->backward_weight(state.output_grad, state.input, state.pass);
  } else {
    state.pass.run_deferred();
  }
}

LlamaProgram::Outline LlamaProgram::outline(Phase phase, LayerId layer) const {
  model::Declaration declaration;
  if (is_embedding(layer)) {
    embedding_->declare(phase, spec_.rows.rows(), declaration);
  } else if (is_head(layer)) {
    head_->declare(phase, declaration);
  } else {
    const auto& block = *layers_.at(layer.value).block;
    if (phase == Phase::backward || phase == Phase::backward_input)
      block.declare_again(layers_.at(layer.value).recompute, declaration);
    block.declare(phase, declaration);
  }
  return {std::move(declaration.nested), std::move(declaration.segments)};
}

at::Tensor& LlamaProgram::place(train::Payload payload, StageId stage, MicrobatchId microbatch) {
  Flow& data = flow(stage, microbatch);
  return payload == train::Payload::activation ? data.activation : data.gradient;
}

train::Held LlamaProgram::make_input(train::Payload payload, StageId stage, MicrobatchId microbatch) {
  auto tensor = at::empty({local_rows_, spec_.model.hidden}, at::TensorOptions(model::scalar_type(spec_.precision)));
  place(payload, stage, microbatch) = tensor;
  return {span_of(tensor), std::make_shared<at::Tensor>(tensor)};
}

train::Held LlamaProgram::take_output(train::Payload payload, StageId stage, MicrobatchId microbatch) {
  auto tensor = std::exchange(place(payload, stage, microbatch), {}).contiguous();
  return {span_of(tensor), std::make_shared<at::Tensor>(tensor)};
}

void LlamaProgram::hand_over(train::Payload payload, StageId from, StageId to, MicrobatchId microbatch) {
  place(payload, to, microbatch) = std::exchange(place(payload, from, microbatch), {});
}

}  // namespace orthant::step
