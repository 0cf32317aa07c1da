// SPDX-License-Identifier: Apache-2.0
#include <orthant/tp/chunked_loss_head.hpp>

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <orthant/core/model/kept.hpp>
#include <orthant/core/model/kernels/cross_entropy.hpp>
#include <orthant/core/model/kernels/expect.hpp>
#include <orthant/core/model/kernels/product.hpp>
#include <orthant/core/model/kernels/weight_grad.hpp>

namespace orthant::tp {

namespace kernels = model::kernels;
using model::LayerPass;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

/// body(first, count) for each chunk of T rows.
template <class Body>
void for_chunks(std::int64_t rows, std::int64_t chunk, const Body& body) {
  for (std::int64_t first = 0; first < rows; first += chunk) body(first, std::min(chunk, rows - first));
}

}  // namespace

struct ChunkedLossHead::Function : torch::autograd::Function<ChunkedLossHead::Function> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& targets, ChunkedLossHead& head,
                            LayerPass& pass) {
    Saved saved{.x_ND = x, .targets_T = targets, .max_T = {}, .sum_exp_T = {}};
    auto loss = head.reduce(saved, pass);
    ctx->save_for_backward({x, targets, saved.max_T, saved.sum_exp_T});
    ctx->saved_data["head"] = model::keep(head);
    ctx->saved_data["pass"] = model::keep(pass);
    return loss;
  }
  static variable_list backward(AutogradContext* ctx,
                                const variable_list&) {  // of a loss: the incoming gradient is one
    const auto saved = ctx->get_saved_variables();
    // Detached: what waits for W would hold the graph below it.
    auto dx = model::kept<ChunkedLossHead>(ctx, "head")
                  .backward({saved[0].detach(), saved[1], saved[2], saved[3]}, model::kept<LayerPass>(ctx, "pass"));
    return {dx, {}, {}, {}};
  }
};

at::Tensor ChunkedLossHead::forward(const at::Tensor& x_ND, const at::Tensor& targets_T, LayerPass& pass) {
  return Function::apply(x_ND, targets_T, *this, pass);
}

at::Tensor ChunkedLossHead::logits(const at::Tensor& x_CD) const {
  return kernels::product(x_CD, shard_.weight.weight.t());
}

at::Tensor ChunkedLossHead::reduce(Saved& saved, LayerPass& pass) const {
  const auto x_TD = exchange_.gather(saved.x_ND, pass).wait(pass);
  const auto wide = x_TD.options().dtype(kernels::compute_type(x_TD.scalar_type()));
  saved.max_T = at::empty({x_TD.size(0)}, wide);
  saved.sum_exp_T = at::empty({x_TD.size(0)}, wide);
  auto loss = at::zeros({}, wide);
  for_chunks(x_TD.size(0), options_.rows, [&](std::int64_t first, std::int64_t count) {
    const auto chunk = row_statistics(logits(x_TD.narrow(0, first, count)), saved.targets_T.narrow(0, first, count),
                                      shard_.begin, pass.training ? options_.z_loss : 0, exchange_, pass);
    saved.max_T.narrow(0, first, count).copy_(chunk.max_T);
    saved.sum_exp_T.narrow(0, first, count).copy_(chunk.sum_exp_T);
    loss.add_(chunk.loss);
  });
  return loss;
}

at::Tensor ChunkedLossHead::logits_gradient(const at::Tensor& x_CD, const Saved& saved, std::int64_t first) const {
  auto dlogits_CV = logits(x_CD);
  const auto rows = [&](const at::Tensor& of) { return of.narrow(0, first, x_CD.size(0)); };
  kernels::cross_entropy_backward_(dlogits_CV, rows(saved.max_T), rows(saved.sum_exp_T), rows(saved.targets_T),
                                   shard_.begin, 1.0, options_.z_loss);
  return dlogits_CV;
}

void ChunkedLossHead::accumulate(const at::Tensor& dlogits_CV, const at::Tensor& x_CD) {
  if (!shard_.weight.trains) return;
  kernels::accumulate_weight_grad(shard_.weight.grad, dlogits_CV, x_CD, shard_.weight.next_contribution());
}

at::Tensor ChunkedLossHead::backward(const Saved& saved, LayerPass& pass) {
  const auto x_TD = exchange_.gather(saved.x_ND, pass).wait(pass);
  auto dx_TD = at::empty_like(x_TD);
  for_chunks(x_TD.size(0), options_.rows, [&](std::int64_t first, std::int64_t count) {
    const auto x_CD = x_TD.narrow(0, first, count);
    const auto dlogits_CV = logits_gradient(x_CD, saved, first);
    kernels::product_into(dx_TD.narrow(0, first, count), dlogits_CV, shard_.weight.weight);
    if (!pass.split) accumulate(dlogits_CV, x_CD);
  });
  if (pass.split) {
    pass.weight_gradient([this, saved](LayerPass& later) {
      const auto again_TD = exchange_.gather(saved.x_ND, later).wait(later);
      for_chunks(again_TD.size(0), options_.rows, [&](std::int64_t first, std::int64_t count) {
        const auto x_CD = again_TD.narrow(0, first, count);
        accumulate(logits_gradient(x_CD, saved, first), x_CD);
      });
    });
  }
  return exchange_.sum(std::move(dx_TD), pass).wait(pass);
}

void ChunkedLossHead::declare(Phase phase, std::int64_t rows, model::Declaration& out) const {
  RowOutline o(exchange_, what_, rows, out);
  const auto vocab = shard_.weight.region.shape[0], hidden = shard_.weight.region.shape[1];
  const auto products = [&](RowOutline& of, int count) {
    for (int i = 0; i < count; ++i) of.product(vocab, hidden);
  };
  o.wait(o.gather(hidden));
  switch (phase) {
    case Phase::forward:
      for_chunks(rows, options_.rows, [&](std::int64_t, std::int64_t count) {
        RowOutline chunk(exchange_, what_, count, out);
        products(chunk, 1);
        declare_row_statistics(chunk);
      });
      return;
    case Phase::backward:
    case Phase::backward_input:
      products(o, phase == Phase::backward ? 3 : 2);
      o.wait(o.sum(hidden));
      return;
    case Phase::backward_weight:
      products(o, 2);
      return;
  }
}

}  // namespace orthant::tp
