// SPDX-License-Identifier: Apache-2.0
#include <orthant/tp/parallel_linear.hpp>

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <orthant/core/model/kept.hpp>
#include <orthant/core/model/kernels/product.hpp>
#include <orthant/core/model/kernels/weight_grad.hpp>

namespace orthant::tp {

using model::LayerPass;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ParallelLinear::Function : torch::autograd::Function<ParallelLinear::Function> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, ParallelLinear& layer, LayerPass& pass) {
    auto [y, kept] = layer.product(x, pass);
    ctx->save_for_backward({kept});
    ctx->saved_data["layer"] = model::keep(layer);
    ctx->saved_data["pass"] = model::keep(pass);
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto& layer = model::kept<ParallelLinear>(ctx, "layer");
    auto& pass = model::kept<LayerPass>(ctx, "pass");
    // Detached: a weight gradient that waits for W would hold the graph below it, the layer's input and its gradient.
    const auto kept = ctx->get_saved_variables()[0].detach();
    return {layer.backward(grads[0].contiguous(), kept, pass), {}, {}};
  }
};

at::Tensor ParallelLinear::forward(const at::Tensor& x, LayerPass& pass) { return Function::apply(x, *this, pass); }

void ParallelLinear::accumulate(const at::Tensor& dy_TE, const at::Tensor& x_TF) {
  if (!weight_.trains) return;
  model::kernels::accumulate_weight_grad(weight_.grad, dy_TE, x_TF, weight_.next_contribution());
}

ParallelLinear::Product ColumnParallel::product(const at::Tensor& x_NF, LayerPass& pass) {
  if (exchange_.gathers_in_pieces()) return product_by_pieces(x_NF, pass);
  const auto x_TF = exchange_.gather(x_NF, pass).wait(pass);
  return {model::kernels::product(x_TF, weight_.weight.t()), exchange_.keeps_gathered() ? x_TF : x_NF};
}

ParallelLinear::Product ColumnParallel::product_by_pieces(const at::Tensor& x_NF, LayerPass& pass) {
  const auto rows = x_NF.size(0), ranks = std::int64_t{exchange_.size()};
  auto pieces = exchange_.gather_pieces(x_NF, pass);
  auto y_TE = at::empty({ranks * rows, out_features()}, x_NF.options());
  auto kept = exchange_.keeps_gathered() ? at::empty({ranks * rows, in_features()}, x_NF.options()) : x_NF;
  for (auto& piece : pieces) {
    const auto arrived = piece.tensor.wait(pass);
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const auto x = arrived.narrow(0, rank * piece.rows, piece.rows);
      const auto at = rank * rows + piece.first;
      model::kernels::product_into(y_TE.narrow(0, at, piece.rows), x, weight_.weight.t());
      if (exchange_.keeps_gathered()) kept.narrow(0, at, piece.rows).copy_(x);
    }
  }
  return {std::move(y_TE), std::move(kept)};
}

at::Tensor ColumnParallel::backward(const at::Tensor& dy_TE, const at::Tensor& kept, LayerPass& pass) {
  if (pass.split) {
    pass.weight_gradient(
        [this, dy_TE, kept](LayerPass& later) { accumulate(dy_TE, exchange_.gather_kept(kept, later).wait(later)); });
    return exchange_.sum(model::kernels::product(dy_TE, weight_.weight), pass).wait(pass);
  }
  // The gather runs during the first product, the sum during the second.
  auto x_TF = exchange_.gather_kept(kept, pass);
  auto dx_NF = exchange_.sum(model::kernels::product(dy_TE, weight_.weight), pass);
  accumulate(dy_TE, x_TF.wait(pass));
  return dx_NF.wait(pass);
}

void ColumnParallel::declare(Phase phase, std::int64_t rows, model::Declaration& out) const {
  RowOutline o = outline(rows, out);
  const auto product = [&] { o.product(out_features(), in_features()); };
  switch (phase) {
    case Phase::forward:
      if (exchange_.gathers_in_pieces()) return o.products_by_pieces(out_features(), in_features());
      o.wait(o.gather(in_features()));
      product();
      return;
    case Phase::backward_weight:
      o.wait(o.gather_kept(in_features()));
      product();
      return;
    case Phase::backward: {
      const auto x = o.gather_kept(in_features());
      product();
      const auto dx = o.sum(in_features());
      o.wait(x);
      product();
      o.wait(dx);
      return;
    }
    case Phase::backward_input:
      product();
      o.wait(o.sum(in_features()));
      return;
  }
}

ParallelLinear::Product RowParallel::product(const at::Tensor& x_TF, LayerPass& pass) {
  return {exchange_.sum(model::kernels::product(x_TF, weight_.weight.t()), pass).wait(pass), x_TF};
}

at::Tensor RowParallel::backward(const at::Tensor& dy_NE, const at::Tensor& x_TF, LayerPass& pass) {
  const auto dy_TE = exchange_.gather(dy_NE, pass).wait(pass);
  auto dx_TF = model::kernels::product(dy_TE, weight_.weight);
  pass.weight_gradient([this, dy_TE, x_TF](LayerPass&) { accumulate(dy_TE, x_TF); });
  return dx_TF;
}

void RowParallel::declare(Phase phase, std::int64_t rows, model::Declaration& out) const {
  RowOutline o = outline(rows, out);
  const auto product = [&] { o.product(out_features(), in_features()); };
  switch (phase) {
    case Phase::forward:
      product();
      o.wait(o.sum(out_features()));
      return;
    case Phase::backward:
    case Phase::backward_input:
      o.wait(o.gather(out_features()));
      product();
      if (phase == Phase::backward) product();
      return;
    case Phase::backward_weight:
      product();
      return;
  }
}

}  // namespace orthant::tp
