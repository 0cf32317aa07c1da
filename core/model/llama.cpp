// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/llama.hpp>

#include <ATen/ops/add.h>
#include <fmt/format.h>

#include <orthant/core/model/differentiable.hpp>
#include <orthant/core/model/dropped_memory.hpp>
#include <orthant/core/model/kernels/head_norm.hpp>
#include <orthant/core/model/kernels/rms_norm.hpp>
#include <orthant/core/model/kernels/swiglu.hpp>

// N rows on this rank  T rows of the whole sequence  D model  H query heads, G key/value heads on this rank  K head dim
// F ffn on this rank

namespace orthant::model {
namespace {

std::string layer_name(LayerId layer, const char* what) {
  return fmt::format("model.layers.{}.{}.weight", layer.value - 1, what);
}

/// On every rank; under sequence parallelism each sees other rows.
Parameter& declare_norm(const ModelConfig& config, LayerFactory& factory, Parameters parameters, UnitId unit,
                        std::string name) {
  return declare(parameters, unit,
                 {{.name = std::move(name),
                   .placement = factory.whole({config.hidden}),
                   .init = shard::Init::ones,
                   .partial = factory.sequence_shards() > 1}});
}

}  // namespace

Block::Block(const ModelConfig& config, LayerFactory& factory, Parameters parameters, LayerId layer, UnitId norms,
             RowShape shape)
    : config_(config),
      layer_(layer),
      shape_(shape),
      heads_(factory.heads_here(config.heads)),
      kv_heads_(factory.heads_here(config.kv_heads)),
      input_norm_(declare_norm(config, factory, parameters, norms, layer_name(layer, "input_layernorm"))),
      post_attention_norm_(
          declare_norm(config, factory, parameters, norms, layer_name(layer, "post_attention_layernorm"))) {
  const UnitId unit{UnitIds::block(layer.value)};
  const auto query = config.heads * config.head_dim, key_value = config.kv_heads * config.head_dim;
  qkv_ = factory.linear({.role = LinearRole::column,
                         .unit = unit,
                         .in = config.hidden,
                         .parts = {{layer_name(layer, "self_attn.q_proj"), query, config.heads},
                                   {layer_name(layer, "self_attn.k_proj"), key_value, config.kv_heads},
                                   {layer_name(layer, "self_attn.v_proj"), key_value, config.kv_heads}}});
  if (config.qk_norm) {
    query_norm_ = &declare_head_norm(factory, parameters, norms, layer_name(layer, "self_attn.q_norm"));
    key_norm_ = &declare_head_norm(factory, parameters, norms, layer_name(layer, "self_attn.k_norm"));
  }
  attention_out_ = factory.linear({.role = LinearRole::row,
                                   .unit = unit,
                                   .in = query,
                                   .parts = {{layer_name(layer, "self_attn.o_proj"), config.hidden}}});
  gate_up_ = factory.linear(
      {.role = LinearRole::column,
       .unit = unit,
       .in = config.hidden,
       .parts = {{layer_name(layer, "mlp.gate_proj"), config.ffn}, {layer_name(layer, "mlp.up_proj"), config.ffn}}});
  down_ = factory.linear({.role = LinearRole::row,
                          .unit = unit,
                          .in = config.ffn,
                          .parts = {{layer_name(layer, "mlp.down_proj"), config.hidden}}});
}

/// On every rank, for its own heads: its gradient is always one of several terms.
Parameter& Block::declare_head_norm(LayerFactory& factory, Parameters parameters, UnitId unit, std::string name) const {
  const auto placement = factory.whole({config_.head_dim});
  return model::declare(
      parameters, unit,
      {{.name = std::move(name), .placement = placement, .init = shard::Init::ones, .partial = placement.copies > 1}});
}

kernels::AttentionShape Block::attention_shape() const {
  return {
      .seq = shape_.seq, .batch = shape_.batch, .heads = heads_, .kv_heads = kv_heads_, .head_dim = config_.head_dim};
}

at::Tensor Block::forward(const at::Tensor& x_ND, LayerPass& pass, const kernels::RotaryTable& rotary,
                          const Recompute& recompute) {
  const auto mid_ND = attend(x_ND, pass, rotary, recompute.attention && pass.training);
  return feed_forward(mid_ND, pass, recompute.mlp && pass.training);
}

at::Tensor Block::add_residual(const at::Tensor& x_ND, const at::Tensor& update_ND, int place,
                               const LayerPass& pass) const {
  if (!pass.dropout) return at::add(x_ND, update_ND);
  const auto& source = *pass.dropout;
  return add_dropout(x_ND, update_ND,
                     {.rate = config_.dropout,
                      .key = source.key(layer_, place),
                      .first_sample = source.first_sample,
                      .batch = shape_.batch,
                      .first_row = source.first_row});
}

// Without a graph nothing is held for longer than its reader needs it.

at::Tensor Block::attend(const at::Tensor& x_ND, LayerPass& pass, const kernels::RotaryTable& rotary, bool drops) {
  auto qkv_TE = qkv_->forward(rms_norm(x_ND, input_norm_, config_.norm_eps), pass);
  const auto shape = attention_shape();
  kernels::AttentionSaved saved;
  auto normed_TE = config_.qk_norm ? head_norm(qkv_TE, *query_norm_, *key_norm_, shape, config_.norm_eps) : qkv_TE;
  const auto context_THK = attention(normed_TE, shape, rotary, drops ? &saved : nullptr);
  normed_TE.reset();
  if (!drops) qkv_TE.reset();
  auto mid_ND = add_residual(x_ND, attention_out_->forward(context_THK, pass), 0, pass);
  if (!drops) return mid_ND;
  pass.recompute.push_back([=, this, &rotary](LayerPass&) {
    const auto normed =
        config_.qk_norm
            ? kernels::head_norm_forward(qkv_TE, {query_norm_->weight, key_norm_->weight}, shape, config_.norm_eps).qkv
            : qkv_TE;
    const auto again = kernels::attention_forward(normed, shape, rotary);
    refill_memory(saved.q, again.q);
    refill_memory(saved.k, again.k);
    refill_memory(saved.v, again.v);
    refill_memory(saved.probabilities, again.probabilities);
    refill_memory(context_THK, again.context);
  });
  for (const auto& made : {saved.q, saved.k, saved.v, saved.probabilities, context_THK}) drop_memory(made);
  return mid_ND;
}

at::Tensor Block::feed_forward(const at::Tensor& mid_ND, LayerPass& pass, bool drops) {
  auto normed_ND = rms_norm(mid_ND, post_attention_norm_, config_.norm_eps);
  auto gate_up_T2F = gate_up_->forward(normed_ND, pass);
  if (!drops) normed_ND.reset();
  auto inner_TF = swiglu(gate_up_T2F);
  if (!drops) gate_up_T2F.reset();
  auto out_ND = add_residual(mid_ND, down_->forward(inner_TF, pass), 1, pass);
  if (!drops) return out_ND;
  pass.recompute.push_back([=, this](LayerPass& later) {
    const auto normed = kernels::rms_norm_forward(mid_ND, post_attention_norm_.weight, config_.norm_eps).y;
    const auto gate_up = gate_up_->forward(normed, later);
    refill_memory(inner_TF, kernels::swiglu_forward(gate_up));
    refill_memory(gate_up_T2F, gate_up);
    refill_memory(normed_ND, normed);
  });
  for (const auto& made : {normed_ND, gate_up_T2F, inner_TF}) drop_memory(made);
  return out_ND;
}

void Block::declare(Phase phase, Declaration& out) const {
  const auto rows = shape_.rows();
  if (phase == Phase::forward) {
    for (const auto* linear : {&qkv_, &attention_out_, &gate_up_, &down_}) (*linear)->declare(phase, rows, out);
  } else {
    for (const auto* linear : {&down_, &gate_up_, &attention_out_, &qkv_}) (*linear)->declare(phase, rows, out);
  }
}

void Block::declare_again(const Recompute& recompute, Declaration& out) const {
  if (recompute.block) declare(Phase::forward, out);
  if (!recompute.block && recompute.mlp) gate_up_->declare(Phase::forward, shape_.rows(), out);
}

Head::Head(const ModelConfig& config, LayerFactory& factory, Parameters parameters, UnitId norms, RowShape shape)
    : config_(config), shape_(shape), norm_(declare_norm(config, factory, parameters, norms, "model.norm.weight")) {
  const char* name = config.tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
  loss_ = factory.loss_head(UnitId{UnitIds::head(config)}, name);
}

at::Tensor Head::forward(const at::Tensor& x_ND, const at::Tensor& targets_T, LayerPass& pass) {
  return loss_->forward(rms_norm(x_ND, norm_, config_.norm_eps), targets_T, pass);
}

void Head::declare(Phase phase, Declaration& out) const { loss_->declare(phase, shape_.rows(), out); }

}  // namespace orthant::model
