// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/differentiable.hpp>

#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <orthant/core/model/kept.hpp>
#include <orthant/core/model/kernels/head_norm.hpp>
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

c10::IValue keep_shape(const kernels::AttentionShape& shape) {
  return std::vector<std::int64_t>{shape.seq, shape.batch, shape.heads, shape.kv_heads, shape.head_dim};
}

kernels::AttentionShape kept_shape(AutogradContext* ctx) {
  const auto dims = ctx->saved_data.at("shape").toIntVector();
  return {.seq = dims[0], .batch = dims[1], .heads = dims[2], .kv_heads = dims[3], .head_dim = dims[4]};
}

struct HeadNormFunction : Function<HeadNormFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, Parameter& query, Parameter& key,
                            const kernels::AttentionShape& shape, double eps) {
    auto result = kernels::head_norm_forward(qkv, {query.weight, key.weight}, shape, eps);
    ctx->save_for_backward({qkv, result.q_rstd, result.k_rstd});
    ctx->saved_data["query"] = keep(query);
    ctx->saved_data["key"] = keep(key);
    ctx->saved_data["shape"] = keep_shape(shape);
    return result.qkv;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    auto &query = kept<Parameter>(ctx, "query"), &key = kept<Parameter>(ctx, "key");
    const auto gradient = [&](Parameter& parameter) {
      return parameter.trains ? kernels::HeadNormGradient{parameter.grad, parameter.next_contribution()}
                              : kernels::HeadNormGradient{at::empty_like(parameter.weight, saved[1].options())};
    };
    auto dqkv = kernels::head_norm_backward(grads[0].contiguous(), saved[0], {query.weight, key.weight},
                                            {.q_rstd = saved[1], .k_rstd = saved[2]}, kept_shape(ctx), gradient(query),
                                            gradient(key));
    return {dqkv, {}, {}, {}, {}};
  }
};

struct AttentionFunction : Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const kernels::AttentionShape& shape,
                            const kernels::RotaryTable& rotary, kernels::AttentionSaved* saved) {
    auto result = kernels::attention_forward(qkv, shape, rotary);
    if (saved != nullptr) *saved = result;
    ctx->save_for_backward({result.q, result.k, result.v, result.probabilities});
    ctx->saved_data["shape"] = keep_shape(shape);
    ctx->saved_data["rotary"] = keep(rotary);
    return result.context;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const kernels::AttentionSaved given{.q = saved[0], .k = saved[1], .v = saved[2], .probabilities = saved[3]};
    auto dqkv = kernels::attention_backward(grads[0].contiguous(), given, kept_shape(ctx),
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

struct AddDropout : Function<AddDropout> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& residual, const at::Tensor& update,
                            const kernels::DropoutRows& rows) {
    ctx->saved_data["rate"] = rows.rate;
    ctx->saved_data["rows"] =
        std::vector<std::int64_t>{static_cast<std::int64_t>(rows.key), rows.first_sample, rows.batch, rows.first_row};
    return kernels::add_dropout(residual, update, rows);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto rows = ctx->saved_data.at("rows").toIntVector();
    const auto dout = grads[0].contiguous();
    return {dout,
            kernels::dropout_backward(dout, {.rate = ctx->saved_data.at("rate").toDouble(),
                                             .key = static_cast<std::uint64_t>(rows[0]),
                                             .first_sample = rows[1],
                                             .batch = rows[2],
                                             .first_row = rows[3]}),
            {}};
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

at::Tensor head_norm(const at::Tensor& qkv_NE, Parameter& query, Parameter& key, const kernels::AttentionShape& shape,
                     double eps) {
  return HeadNormFunction::apply(qkv_NE, query, key, shape, eps);
}

at::Tensor swiglu(const at::Tensor& gate_up_N2F) { return SwigluFunction::apply(gate_up_N2F); }

at::Tensor add_dropout(const at::Tensor& residual, const at::Tensor& update, const kernels::DropoutRows& rows) {
  return AddDropout::apply(residual, update, rows);
}

at::Tensor with_gradient(const at::Tensor& x, const at::Tensor& value, const at::Tensor& dx) {
  return GivenGradient::apply(x, value, dx);
}

}  // namespace orthant::model
