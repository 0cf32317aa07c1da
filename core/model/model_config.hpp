// SPDX-License-Identifier: Apache-2.0
// The Llama-style decoder that every part agrees on. Definitions: RMSNorm, rotary embedding in the rotate-half layout,
// grouped-query attention (with norms of queries and keys, if wanted: Dehghani et al. 2023), SwiGLU, no biases.
#pragma once

#include <cstdint>

#include <orthant/core/base/dtype.hpp>

namespace orthant::model {

struct ModelConfig {
  std::int64_t layers = 8;
  std::int64_t hidden = 128;
  std::int64_t heads = 8;
  std::int64_t kv_heads = 8;
  std::int64_t head_dim = 16;
  std::int64_t ffn = 384;
  std::int64_t vocab = 2048;
  double rope_theta = 10000.0;
  double norm_eps = 1e-5;
  double init_std = 0.02;
  bool tie_embeddings = false;
  double dropout = 0;          ///< [0, 1): of what attention and MLP add to the residual, in training
  double z_loss = 0;           ///< of the training loss: weight of log(Z)^2
  std::int64_t loss_rows = 0;  ///< rows whose logits are there at once; 0: all of a micro-batch
  bool qk_norm = false;        ///< an RMSNorm over each query and key head, before the rotary embedding

  /// Layer ids run from 0 (embedding) over 1..layers (blocks) to this one (final norm, head and loss).
  std::int64_t head_layer() const { return layers + 1; }
};

/// Unit ids, the same on every rank. A tied head lives in the embedding's unit.
struct UnitIds {
  static constexpr int embedding() { return 0; }
  static constexpr int block(std::int64_t layer) { return static_cast<int>(layer); }
  static int head(const ModelConfig& c) { return c.tie_embeddings ? embedding() : static_cast<int>(c.layers + 1); }
  static int norms(const ModelConfig& c) { return static_cast<int>(c.layers + 2); }
  /// Norms that do not train while others do.
  static int frozen_norms(const ModelConfig& c) { return static_cast<int>(c.layers + 3); }
};

}  // namespace orthant::model
