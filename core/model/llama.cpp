// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/llama.hpp>

#include <ATen/ops/add.h>
#include <fmt/format.h>

#include <orthant/core/model/differentiable.hpp>

// N rows on this rank  T rows of the whole sequence  D model  H query heads, G key/value heads on this rank  K head dim
// F ffn on this rank

namespace orthant::model {
namespace {

std::string layer_name(LayerId layer, const char* what) {
  return fmt::format("model.layers.{}.{}.weight", layer.value - 1, what);
}

Parameter& declare_norm(const ModelConfig& config, Parameters parameters, std::string name) {
  return declare(parameters, UnitId{UnitIds::norms(config)},
                 {{std::move(name), shard::replicate({config.hidden}), shard::Init::ones}});
}

}  // namespace

Block::Block(const ModelConfig& config, LayerFactory& factory, Parameters parameters, LayerId layer, RowShape shape)
    : config_(config),
      shape_(shape),
      input_norm_(declare_norm(config, parameters, layer_name(layer, "input_layernorm"))),
      post_attention_norm_(declare_norm(config, parameters, layer_name(layer, "post_attention_layernorm"))) {
  const UnitId unit{UnitIds::block(layer.value)};
  const auto query = config.heads * config.head_dim, key_value = config.kv_heads * config.head_dim;
  qkv_ = factory.linear({.role = LinearRole::column,
                         .unit = unit,
                         .in = config.hidden,
                         .parts = {{layer_name(layer, "self_attn.q_proj"), query},
                                   {layer_name(layer, "self_attn.k_proj"), key_value},
                                   {layer_name(layer, "self_attn.v_proj"), key_value}}});
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

at::Tensor Block::forward(const at::Tensor& x_ND, LayerPass& pass, const kernels::RotaryTable& rotary) {
  auto qkv_TE = qkv_->forward(rms_norm(x_ND, input_norm_, config_.norm_eps), pass);
  const auto heads_here = qkv_TE.size(1) / config_.head_dim * config_.heads / (config_.heads + 2 * config_.kv_heads);
  const kernels::AttentionShape shape{.seq = shape_.seq,
                                      .batch = shape_.batch,
                                      .heads = heads_here,
                                      .kv_heads = heads_here * config_.kv_heads / config_.heads,
                                      .head_dim = config_.head_dim};
  auto context_THK = attention(qkv_TE, shape, rotary);
  auto mid_ND = at::add(x_ND, attention_out_->forward(context_THK, pass));

  auto gate_up_T2F = gate_up_->forward(rms_norm(mid_ND, post_attention_norm_, config_.norm_eps), pass);
  return at::add(mid_ND, down_->forward(swiglu(gate_up_T2F), pass));
}

void Block::declare(Phase phase, Declaration& out) const {
  const auto rows = shape_.rows();
  if (phase == Phase::forward) {
    for (const auto* linear : {&qkv_, &attention_out_, &gate_up_, &down_}) (*linear)->declare(phase, rows, out);
  } else {
    for (const auto* linear : {&down_, &gate_up_, &attention_out_, &qkv_}) (*linear)->declare(phase, rows, out);
  }
}

Head::Head(const ModelConfig& config, LayerFactory& factory, Parameters parameters, RowShape shape)
    : config_(config), shape_(shape), norm_(declare_norm(config, parameters, "model.norm.weight")) {
  const char* name = config.tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
  loss_ = factory.loss_head(UnitId{UnitIds::head(config)}, name);
}

at::Tensor Head::forward(const at::Tensor& x_ND, const at::Tensor& targets_T, LayerPass& pass) {
  return loss_->forward(rms_norm(x_ND, norm_, config_.norm_eps), targets_T, pass);
}

void Head::declare(Phase phase, Declaration& out) const { loss_->declare(phase, shape_.rows(), out); }

}  // namespace orthant::model
