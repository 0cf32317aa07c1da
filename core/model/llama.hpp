// SPDX-License-Identifier: Apache-2.0
// The Llama layers: an embedding, blocks, and a head that ends in the loss. Plain forward code; it knows no rank, mesh
// or axis: what is sharded comes from the layer factory, and sizes on this rank come from the tensors.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>
#include <orthant/core/model/declare.hpp>
#include <orthant/core/model/kernels/rotary.hpp>
#include <orthant/core/model/layer_factory.hpp>

namespace orthant::model {

/// Rows that a layer sees: sequence x micro-batch, sequence-major.
struct RowShape {
  std::int64_t seq = 0;
  std::int64_t batch = 0;
  std::int64_t rows() const { return seq * batch; }
};

class Block {
 public:
  Block(const ModelConfig& config, LayerFactory& factory, Parameters parameters, LayerId layer, RowShape shape);
  /// [N, D] -> [N, D], differentiable.
  at::Tensor forward(const at::Tensor& x_ND, LayerPass& pass, const kernels::RotaryTable& rotary);
  void declare(Phase phase, Declaration& out) const;

 private:
  ModelConfig config_;
  RowShape shape_;
  Parameter& input_norm_;
  std::unique_ptr<Linear> qkv_;
  std::unique_ptr<Linear> attention_out_;
  Parameter& post_attention_norm_;
  std::unique_ptr<Linear> gate_up_;
  std::unique_ptr<Linear> down_;
};

/// Final norm, projection to the vocabulary and cross-entropy.
class Head {
 public:
  Head(const ModelConfig& config, LayerFactory& factory, Parameters parameters, RowShape shape);
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
