// SPDX-License-Identifier: Apache-2.0
// The two ways to cut a product over the tp axis. Column-parallel cuts output features: every rank needs all rows of
// the input, and the input's gradient is a sum over ranks. Row-parallel cuts input features: the output is a sum over
// ranks, and every rank needs all rows of its gradient. So a column-parallel layer, element functions and a
// row-parallel layer meet once before and once after.
#pragma once

#include <string>
#include <utility>

#include <orthant/core/model/layer_factory.hpp>
#include <orthant/tp/row_exchange.hpp>

namespace orthant::tp {

// N, T rows as in row_exchange.hpp  E output features, F input features, of the weight on this rank

/// What both have in common: autograd sees the rows alone, weight gradients go to the pass.
class ParallelLinear : public model::Linear {
 public:
  /// what  names the layer in the timeline.
  ParallelLinear(model::Parameter& weight, RowExchange exchange, std::string what)
      : weight_(weight), exchange_(std::move(exchange)), what_(std::move(what)) {}

  at::Tensor forward(const at::Tensor& x, model::LayerPass& pass) final;

 protected:
  std::int64_t out_features() const { return weight_.region.shape[0]; }
  std::int64_t in_features() const { return weight_.region.shape[1]; }
  RowOutline outline(std::int64_t rows, model::Declaration& out) const { return {exchange_, what_, rows, out}; }
  /// Adds dy^T x to the weight's gradient.
  void accumulate(const at::Tensor& dy_TE, const at::Tensor& x_TF);

  model::Parameter& weight_;
  RowExchange exchange_;

  struct Product {
    at::Tensor y;
    at::Tensor kept;  ///< of the input, for backward
  };

 private:
  struct Function;
  virtual Product product(const at::Tensor& x, model::LayerPass& pass) = 0;
  /// Returns dx.
  virtual at::Tensor backward(const at::Tensor& dy, const at::Tensor& kept, model::LayerPass& pass) = 0;

  std::string what_;
};

/// [N, F] -> [T, E] with a range of each part's output features. Keeps the N rows, which backward gathers again, or all
/// T (TpOptions::keep_gathered).
class ColumnParallel final : public ParallelLinear {
 public:
  using ParallelLinear::ParallelLinear;
  void declare(Phase phase, std::int64_t rows, model::Declaration& out) const override;

 private:
  Product product(const at::Tensor& x_NF, model::LayerPass& pass) override;
  Product product_by_pieces(const at::Tensor& x_NF, model::LayerPass& pass);
  at::Tensor backward(const at::Tensor& dy_TE, const at::Tensor& kept, model::LayerPass& pass) override;
};

/// [T, F] -> [N, E] with a range of input features.
class RowParallel final : public ParallelLinear {
 public:
  using ParallelLinear::ParallelLinear;
  void declare(Phase phase, std::int64_t rows, model::Declaration& out) const override;

 private:
  Product product(const at::Tensor& x_TF, model::LayerPass& pass) override;
  at::Tensor backward(const at::Tensor& dy_NE, const at::Tensor& x_TF, model::LayerPass& pass) override;
};

}  // namespace orthant::tp
