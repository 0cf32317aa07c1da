// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/differentiable.hpp>

#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <orthant/core/model/kept.hpp>
#include <orthant/core/model/kernels/product.hpp>
#include <orthant/core/model/kernels/rms_norm.hpp>
#include <orthant/core/model/kernels/swiglu.hpp>
#include <orthant/core/model/kernels/weight_grad.hpp>

namespace orthant::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct RmsNormFunction : Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, Parameter& weight, double eps) {
    auto result = kernels::rms_norm_forward(x, weight.weight, eps);
    ctx->save_for_backward({x, result.rstd});
    ctx->saved_data["weight"] = keep(weight);
    return result.y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    auto& weight = kept<Parameter>(ctx, "weight");
    const bool trains = weight.trains;
    const auto dweight = trains ? weight.grad : at::empty_like(weight.weight, saved[1].options());
    auto dx = kernels::rms_norm_backward(grads[0].contiguous(), saved[0], weight.weight, saved[1], dweight,
                                         trains ? weight.next_contribution() : kernels::Accumulate::overwrite);
    return {dx, {}, {}};
  }
};

struct LinearFunction : Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, Parameter& weight, LayerPass& pass) {
    ctx->save_for_backward({x});
    ctx->saved_data["weight"] = keep(weight);
    ctx->saved_data["pass"] = keep(pass);
    return kernels::product(x, weight.weight.t());
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto& weight = kept<Parameter>(ctx, "weight");
    auto dy = grads[0].contiguous();
    auto dx = kernels::product(dy, weight.weight);
    if (!weight.trains) return {dx, {}, {}};
    // Detached: while it waits for W it would hold the graph below it, the layer's input and its gradient.
    kept<LayerPass>(ctx, "pass").weight_gradient([&weight, dy, x = ctx->get_saved_variables()[0].detach()](LayerPass&) {
      kernels::accumulate_weight_grad(weight.grad, dy, x, weight.next_contribution());
    });
    return {dx, {}, {}};
  }
};

struct AttentionFunction : Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const kernels::AttentionShape& shape,
                            const kernels::RotaryTable& rotary, kernels::AttentionSaved* saved) {
    auto result = kernels::attention_forward(qkv, shape, rotary);
    if (saved != nullptr) *saved = result;
    ctx->save_for_backward({result.q, result.k, result.v, result.probabilities});
    ctx->saved_data["shape"] =
        std::vector<std::int64_t>{shape.seq, shape.batch, shape.heads, shape.kv_heads, shape.head_dim};
    ctx->saved_data["rotary"] = keep(rotary);
    return result.context;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto dims = ctx->saved_data.at("shape").toIntVector();
    const kernels::AttentionShape shape{
        .seq = dims[0], .batch = dims[1], .heads = dims[2], .kv_heads = dims[3], .head_dim = dims[4]};
    const kernels::AttentionSaved given{.q = saved[0], .k = saved[1], .v = saved[2], .probabilities = saved[3]};
    auto dqkv = kernels::attention_backward(grads[0].contiguous(), given, shape,
                                            kept<const kernels::RotaryTable>(ctx, "rotary"));
    return {dqkv, {}, {}, {}};
  }
};

struct SwigluFunction : Function<SwigluFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up) {
    ctx->save_for_backward({gate_up});
    return kernels::swiglu_forward(gate_up);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {kernels::swiglu_backward(grads[0].contiguous(), ctx->get_saved_variables()[0])};
  }
};

struct GivenGradient : Function<GivenGradient> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor&, const at::Tensor& value, const at::Tensor& dx) {
    ctx->save_for_backward({dx});
    return value.clone();
  }
  static variable_list backward(AutogradContext* ctx, const variable_list&) {
    return {ctx->get_saved_variables()[0], {}, {}};  // of a loss: the incoming gradient is one
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x_ND, Parameter& weight, double eps) {
  return RmsNormFunction::apply(x_ND, weight, eps);
}

at::Tensor linear(const at::Tensor& x_NF, Parameter& weight, LayerPass& pass) {
  return LinearFunction::apply(x_NF, weight, pass);
}

at::Tensor attention(const at::Tensor& qkv_NE, const kernels::AttentionShape& shape, const kernels::RotaryTable& rotary,
                     kernels::AttentionSaved* saved) {
  return AttentionFunction::apply(qkv_NE, shape, rotary, saved);
}

at::Tensor swiglu(const at::Tensor& gate_up_N2F) { return SwigluFunction::apply(gate_up_N2F); }

at::Tensor with_gradient(const at::Tensor& x, const at::Tensor& value, const at::Tensor& dx) {
  return GivenGradient::apply(x, value, dx);
}

}  // namespace orthant::model
