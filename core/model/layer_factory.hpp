// SPDX-License-Identifier: Apache-2.0
// The seam between the model and tensor parallelism: the model asks for linears by role and knows no rank, mesh or
// axis. Dense layers are in core/model; tp provides the sharded ones. Each declares the collectives that its body will
// post.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <orthant/core/model/layer_pass.hpp>
#include <orthant/core/model/model_config.hpp>
#include <orthant/core/model/parameter.hpp>

namespace orthant::model {

/// column: output features may be sharded (qkv, gate-up); row: input features may be sharded (attention out, down).
enum class LinearRole : std::uint8_t { column, row };

struct LinearSpec {
  LinearRole role = LinearRole::column;
  UnitId unit;
  std::int64_t in = 0;  ///< global
  struct Part {
    std::string name;
    std::int64_t out = 0;     ///< global
    std::int64_t pieces = 0;  ///< column: cut between so many equal pieces only (heads); 0: anywhere
  };
  std::vector<Part> parts;  ///< fused one under the other
};

// N rows on this rank (sequence x batch, a sequence shard where sequence parallel is on)  T rows of the whole sequence
// E output features on this rank  F input features on this rank

class Linear {
 public:
  virtual ~Linear() = default;
  /// column: [N, in] -> [T, E local]. row: [T, F local] -> [N, out]. Differentiable; its weight gradient goes to the
  /// pass.
  virtual at::Tensor forward(const at::Tensor& x, LayerPass& pass) = 0;
  /// Appends what this linear posts, waits for and computes in `phase`, for `rows` = T.
  virtual void declare(Phase phase, std::int64_t rows, Declaration& out) const = 0;
};

class Embedding {
 public:
  virtual ~Embedding() = default;
  /// tokens [T] i64 -> [N, D]. Returns no graph; backward_weight() gets the output gradient.
  virtual at::Tensor forward(const at::Tensor& tokens, LayerPass& pass) = 0;
  /// grad [N, D]: adds to the embedding's gradient.
  virtual void backward_weight(const at::Tensor& grad, const at::Tensor& tokens, LayerPass& pass) = 0;
  virtual void declare(Phase phase, std::int64_t rows, Declaration& out) const = 0;
};

class LossHead {
 public:
  virtual ~LossHead() = default;
  /// x [N, D], targets [T] i64 (-1: ignored) -> scalar: sum of cross-entropies over all T rows, in fp32 (fp64 for fp64
  /// input), the same on all ranks that share the rows. Differentiable.
  virtual at::Tensor forward(const at::Tensor& x, const at::Tensor& targets, LayerPass& pass) = 0;
  virtual void declare(Phase phase, std::int64_t rows, Declaration& out) const = 0;
};

class LayerFactory {
 public:
  virtual ~LayerFactory() = default;
  virtual std::unique_ptr<Linear> linear(const LinearSpec& spec) = 0;
  virtual std::unique_ptr<Embedding> embedding(UnitId unit, const std::string& name) = 0;
  /// `name` and `unit` are the embedding's when tied.
  virtual std::unique_ptr<LossHead> loss_head(UnitId unit, const std::string& name) = 0;
  /// A parameter that no rank cuts.
  virtual shard::Placement whole(shard::Shape shape) const = 0;
  /// How many of so many heads are on this rank.
  virtual std::int64_t heads_here(std::int64_t heads) const = 0;
  /// How many ways the sequence (and so N against T) is cut.
  virtual int sequence_shards() const = 0;
  /// Which of them is on this rank.
  virtual int sequence_shard() const = 0;
};

}  // namespace orthant::model
