// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/step/llama_program.hpp>

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

LlamaProgram::LlamaProgram(const StageSpec& spec, model::LayerFactory& factory, model::Parameters parameters,
                           BatchReader reader)
    : spec_(spec),
      local_rows_(spec.rows.rows() / factory.sequence_shards()),
      store_(parameters.store),
      reader_(std::move(reader)),
      rotary_(model::kernels::rotary_table(spec.rows.seq, spec.model.head_dim, spec.model.rope_theta,
                                           at::TensorOptions(model::scalar_type(spec.precision)))) {
  const auto& config = spec_.model;
  const UnitId norms{model::UnitIds::norms(config)};
  const bool has_norms = spec_.last.value > 0;
  layout_.stage = spec_.stage;
  // A tied weight lives at both ends of the pipeline: the embedding's rank alone counts it in the norm and writes it to
  // files.
  const bool tied_apart = config.tie_embeddings && spec_.last.value - spec_.first.value < config.head_layer();
  const auto declare_unit = [&](int id, std::string name, UnitKind kind, LayerId layer) {
    parameters.table.add_unit(
        {.id = UnitId{id},
         .name = std::move(name),
         .kind = kind,
         .decays = kind != UnitKind::norms,
         .counted = kind == UnitKind::norms ? spec_.counts_replicated : !(is_head(layer) && tied_apart),
         .tensor_partial = kind == UnitKind::norms && factory.sequence_shards() > 1,
         .tied = kind == UnitKind::embedding && tied_apart});
  };
  if (has_norms) declare_unit(norms.value, "norms", UnitKind::norms, {});

  for (int id = spec_.first.value; id <= spec_.last.value; ++id) {
    const LayerId layer{id};
    if (is_embedding(layer)) {
      declare_unit(model::UnitIds::embedding(), "embedding", UnitKind::embedding, layer);
      embedding_ = factory.embedding(UnitId{model::UnitIds::embedding()}, "model.embed_tokens.weight");
      layout_.layers.push_back({.layer = layer, .main = UnitId{model::UnitIds::embedding()}});
    } else if (is_head(layer)) {
      const UnitId unit{model::UnitIds::head(config)};
      if (!parameters.table.has(unit)) {
        declare_unit(unit.value, config.tie_embeddings ? "embedding" : "head",
                     config.tie_embeddings ? UnitKind::embedding : UnitKind::head, layer);
      }
      head_.emplace(config, factory, parameters, spec_.rows);
      layout_.layers.push_back({.layer = layer, .main = unit, .norms = norms});
    } else {
      const UnitId unit{model::UnitIds::block(id)};
      declare_unit(unit.value, fmt::format("layers.{}", id - 1), UnitKind::block, layer);
      blocks_.emplace_back(config, factory, parameters, layer, spec_.rows);
      layout_.layers.push_back({.layer = layer, .main = unit, .norms = norms, .alternating = true});
    }
  }
  states_.resize(layout_.layers.size() * static_cast<std::size_t>(spec_.microbatches));
  flows_.resize(static_cast<std::size_t>(spec_.microbatches));
}

void LlamaProgram::begin(const StepInput& input) {
  input_ = input;
  loss_sum_ = 0;
  tokens_ = 0;
}

LlamaProgram::LayerState& LlamaProgram::state(const Step& step) {
  return states_[static_cast<std::size_t>((step.layer.value - spec_.first.value) * spec_.microbatches +
                                          step.microbatch.value)];
}

void LlamaProgram::run(const Step& step, stream::TaskScope& scope) {
  auto& layer = state(step);
  auto& flow = flows_[static_cast<std::size_t>(step.microbatch.value)];
  layer.pass.scope = &scope;
  layer.pass.posted = 0;
  const auto& units = layout_.layers[static_cast<std::size_t>(step.layer.value - spec_.first.value)];
  if (step.overwrite_main) store_.overwrite_gradients(units.main);
  if (step.overwrite_norms) store_.overwrite_gradients(units.norms);
  switch (step.phase) {
    case Phase::forward:
      return forward(step, layer, flow);
    case Phase::backward_weight:
      return backward_weight(step, layer, flow);
    case Phase::backward_input:
      layer.pass.split = true;
      return backward_input(step, layer, flow);
    case Phase::backward:
      layer.pass.split = false;
      backward_input(step, layer, flow);
      return backward_weight(step, layer, flow);
  }
}

void LlamaProgram::read_batch(Flow& flow, MicrobatchId microbatch) {
  flow.inputs = rows_of_tokens(spec_.rows.rows());
  flow.targets = rows_of_tokens(spec_.rows.rows());
  reader_(input_, microbatch, flow.inputs.mutable_data_ptr<std::int64_t>(),
          flow.targets.mutable_data_ptr<std::int64_t>());
}

void LlamaProgram::forward(const Step& step, LayerState& layer, Flow& flow) {
  const at::AutoGradMode graph(input_.training && !is_embedding(step.layer));
  layer.pass.training = input_.training;
  if (is_embedding(step.layer)) {
    read_batch(flow, step.microbatch);
    layer.input = flow.inputs;
    flow.activation = embedding_->forward(flow.inputs, layer.pass);
    return;
  }
  layer.input = std::exchange(flow.activation, {}).detach();
  layer.input.set_requires_grad(input_.training);
  if (is_head(step.layer)) {
    if (!is_embedding(spec_.first)) read_batch(flow, step.microbatch);
    layer.output = head_->forward(layer.input, flow.targets, layer.pass);
    loss_sum_ += layer.output.item<double>();
    tokens_ += flow.targets.ge(0).sum().item<std::int64_t>();
  } else {
    auto& block = blocks_[static_cast<std::size_t>(step.layer.value - std::max(spec_.first.value, 1))];
    layer.output = block.forward(layer.input, layer.pass, rotary_);
    flow.activation = layer.output.detach();
  }
  if (!input_.training) layer = {};
}

void LlamaProgram::backward_input(const Step& step, LayerState& layer, Flow& flow) {
  if (is_embedding(step.layer)) {  // tokens have no gradient: all of its backward is a weight gradient
    layer.output_grad = std::exchange(flow.gradient, {});
    return;
  }
  if (is_head(step.layer)) {
    layer.output.backward();
  } else {
    layer.output.backward(std::exchange(flow.gradient, {}));
  }
  flow.gradient = layer.input.grad();
  layer.output.reset();
  layer.input.reset();
}

void LlamaProgram::backward_weight(const Step& step, LayerState& layer, Flow&) {
  if (is_embedding(step.layer)) {
    embedding_->backward_weight(layer.output_grad, layer.input, layer.pass);
  } else {
    layer.pass.run_deferred();
  }
  layer = {};
}

LlamaProgram::Outline LlamaProgram::outline(Phase phase, LayerId layer) const {
  model::Declaration declaration;
  if (is_embedding(layer)) {
    embedding_->declare(phase, spec_.rows.rows(), declaration);
  } else if (is_head(layer)) {
    head_->declare(phase, declaration);
  } else {
    blocks_[static_cast<std::size_t>(layer.value - std::max(spec_.first.value, 1))].declare(phase, declaration);
  }
  return {std::move(declaration.nested), std::move(declaration.segments)};
}

train::Held LlamaProgram::make_input(train::Payload payload, MicrobatchId microbatch) {
  auto tensor = at::empty({local_rows_, spec_.model.hidden}, at::TensorOptions(model::scalar_type(spec_.precision)));
  auto& flow = flows_[static_cast<std::size_t>(microbatch.value)];
  (payload == train::Payload::activation ? flow.activation : flow.gradient) = tensor;
  return {span_of(tensor), std::make_shared<at::Tensor>(tensor)};
}

train::Held LlamaProgram::take_output(train::Payload payload, MicrobatchId microbatch) {
  auto& flow = flows_[static_cast<std::size_t>(microbatch.value)];
  auto tensor = std::exchange(payload == train::Payload::activation ? flow.activation : flow.gradient, {}).contiguous();
  return {span_of(tensor), std::make_shared<at::Tensor>(tensor)};
}

}  // namespace orthant::step
