// SPDX-License-Identifier: Apache-2.0
#include <orthant/tp/parallel_linear.hpp>

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
    ctx->save_for_backward({x});
    ctx->saved_data["layer"] = model::keep(layer);
    ctx->saved_data["pass"] = model::keep(pass);
    return layer.product(x, pass);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto& layer = model::kept<ParallelLinear>(ctx, "layer");
    auto& pass = model::kept<LayerPass>(ctx, "pass");
    // Detached: a weight gradient that waits for W would hold the graph below it, the layer's input and its gradient.
    const auto x = ctx->get_saved_variables()[0].detach();
    return {layer.backward(grads[0].contiguous(), x, pass), {}, {}};
  }
};

at::Tensor ParallelLinear::forward(const at::Tensor& x, LayerPass& pass) { return Function::apply(x, *this, pass); }

void ParallelLinear::accumulate(const at::Tensor& dy_TE, const at::Tensor& x_TF) {
  if (!weight_.trains) return;
  model::kernels::accumulate_weight_grad(weight_.grad, dy_TE, x_TF, weight_.next_contribution());
}

at::Tensor ColumnParallel::product(const at::Tensor& x_NF, LayerPass& pass) {
  return model::kernels::product(exchange_.gather(x_NF, pass).wait(pass), weight_.weight.t());
}

at::Tensor ColumnParallel::backward(const at::Tensor& dy_TE, const at::Tensor& x_NF, LayerPass& pass) {
  if (pass.split) {
    pass.weight_gradient(
        [this, dy_TE, x_NF](LayerPass& later) { accumulate(dy_TE, exchange_.gather(x_NF, later).wait(later)); });
    return exchange_.sum(model::kernels::product(dy_TE, weight_.weight), pass).wait(pass);
  }
  // The gather runs during the first product, the sum during the second.
  auto x_TF = exchange_.gather(x_NF, pass);
  auto dx_NF = exchange_.sum(model::kernels::product(dy_TE, weight_.weight), pass);
  accumulate(dy_TE, x_TF.wait(pass));
  return dx_NF.wait(pass);
}

void ColumnParallel::declare(Phase phase, std::int64_t rows, model::Declaration& out) const {
  RowOutline o = outline(rows, out);
  const auto product = [&] { o.product(out_features(), in_features()); };
  switch (phase) {
    case Phase::forward:
    case Phase::backward_weight:
      o.wait(o.gather(in_features()));
      product();
      return;
    case Phase::backward: {
      const auto x = o.gather(in_features());
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

at::Tensor RowParallel::product(const at::Tensor& x_TF, LayerPass& pass) {
  return exchange_.sum(model::kernels::product(x_TF, weight_.weight.t()), pass).wait(pass);
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
