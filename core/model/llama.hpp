// SPDX-License-Identifier: Apache-2.0
// The Llama layers: an embedding, blocks, and a head that ends in the loss. Plain forward code; it knows no rank, mesh
// or axis: what is sharded comes from the layer factory, and sizes on this rank come from the tensors.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>
#include <orthant/core/model/declare.hpp>
#include <orthant/core/model/kernels/attention.hpp>
#include <orthant/core/model/layer_factory.hpp>
#include <orthant/core/model/recompute.hpp>

namespace orthant::model {

/// Rows that a layer sees: sequence x micro-batch, sequence-major.
struct RowShape {
  std::int64_t seq = 0;
  std::int64_t batch = 0;
  std::int64_t rows() const { return seq * batch; }
};

class Block {
 public:
  /// norms  unit of the block's two norms
  Block(const ModelConfig& config, LayerFactory& factory, Parameters parameters, LayerId layer, UnitId norms,
        RowShape shape);
  /// [N, D] -> [N, D], differentiable. What `recompute` names is dropped at the end, and the pass made to make it
  /// again.
  at::Tensor forward(const at::Tensor& x_ND, LayerPass& pass, const kernels::RotaryTable& rotary,
                     const Recompute& recompute = {});
  void declare(Phase phase, Declaration& out) const;
  /// What pass.make_again() posts, waits for and computes.
  void declare_again(const Recompute& recompute, Declaration& out) const;

 private:
  kernels::AttentionShape attention_shape() const;
  Parameter& declare_head_norm(LayerFactory& factory, Parameters parameters, UnitId unit, std::string name) const;
  /// x + update, some of which is left out in training. place  in the block, of 2.
  at::Tensor add_residual(const at::Tensor& x_ND, const at::Tensor& update_ND, int place, const LayerPass& pass) const;
  at::Tensor attend(const at::Tensor& x_ND, LayerPass& pass, const kernels::RotaryTable& rotary, bool drops);
  at::Tensor feed_forward(const at::Tensor& mid_ND, LayerPass& pass, bool drops);

  ModelConfig config_;
  LayerId layer_;
  RowShape shape_;
  std::int64_t heads_;     ///< on this rank
  std::int64_t kv_heads_;  ///< on this rank
  Parameter& input_norm_;
  std::unique_ptr<Linear> qkv_;
  Parameter* query_norm_ = nullptr;  ///< with qk_norm
  Parameter* key_norm_ = nullptr;
  std::unique_ptr<Linear> attention_out_;
  Parameter& post_attention_norm_;
  std::unique_ptr<Linear> gate_up_;
  std::unique_ptr<Linear> down_;
};

/// Final norm, projection to the vocabulary and cross-entropy.
class Head {
 public:
  Head(const ModelConfig& config, LayerFactory& factory, Parameters parameters, UnitId norms, RowShape shape);
  /// [N, D], targets [T] -> summed loss (scalar), differentiable.
  at::Tensor forward(const at::Tensor& x_ND, const at::Tensor& targets_T, LayerPass& pass);
  void declare(Phase phase, Declaration& out) const;

 private:
  ModelConfig config_;
  RowShape shape_;
  Parameter& norm_;
  std::unique_ptr<LossHead> loss_;
};

}  // namespace orthant::model
