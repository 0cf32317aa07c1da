// SPDX-License-Identifier: Apache-2.0
#include <orthant/tp/vocab_parallel.hpp>

#include <orthant/core/model/differentiable.hpp>
#include <orthant/core/model/kernels/cross_entropy.hpp>
#include <orthant/core/model/kernels/embedding.hpp>

namespace orthant::tp {

namespace kernels = model::kernels;
using comm::Reduction;
using model::LayerPass;

at::Tensor VocabParallelEmbedding::forward(const at::Tensor& tokens_T, LayerPass& pass) {
  return exchange_.sum(kernels::embedding_forward(shard_.weight.weight, tokens_T, shard_.begin), pass).wait(pass);
}

void VocabParallelEmbedding::backward_weight(const at::Tensor& grad_ND, const at::Tensor& tokens_T, LayerPass& pass) {
  const auto grad_TD = exchange_.gather(grad_ND, pass).wait(pass);
  if (!shard_.weight.trains) return;
  kernels::embedding_backward(grad_TD, tokens_T, shard_.begin, shard_.weight.grad, shard_.weight.next_contribution());
}

// Looking up and adding rows moves each element about once: no product, and too little to count.
void VocabParallelEmbedding::declare(Phase phase, std::int64_t rows, model::Declaration& out) const {
  RowOutline o(exchange_, what_, rows, out);
  const auto columns = shard_.weight.region.shape[1];
  switch (phase) {
    case Phase::forward:
      o.wait(o.sum(columns));
      return;
    case Phase::backward_input:
      return;  // tokens have no gradient
    case Phase::backward:
    case Phase::backward_weight:
      o.wait(o.gather(columns));
      return;
  }
}

RowStatistics row_statistics(const at::Tensor& logits_TV, const at::Tensor& targets_T, std::int64_t vocab_begin,
                             double z_loss, const RowExchange& exchange, LayerPass& pass) {
  const auto max_T = exchange.all_reduce(kernels::row_max(logits_TV), Reduction::max, pass).wait(pass);
  const auto sums_2T =
      exchange.all_reduce(kernels::shard_sums(logits_TV, max_T, targets_T, vocab_begin), Reduction::sum, pass)
          .wait(pass);
  auto loss = kernels::sum_losses(sums_2T[0], sums_2T[1], targets_T);
  if (z_loss > 0) loss.add_(kernels::sum_z_losses(max_T, sums_2T[0], targets_T), z_loss);
  return {max_T, sums_2T[0], std::move(loss)};
}

void declare_row_statistics(RowOutline& o) {
  o.wait(o.all_reduce("max", 1));
  o.wait(o.all_reduce("sums", 2));
}

at::Tensor VocabParallelLossHead::forward(const at::Tensor& x_ND, const at::Tensor& targets_T, LayerPass& pass) {
  auto logits_TV = projection_.forward(x_ND, pass);
  const auto [max_T, sum_exp_T, loss] =
      row_statistics(logits_TV.detach(), targets_T, vocab_begin_, pass.training ? z_loss_ : 0, exchange_, pass);
  if (!pass.training) return loss;
  auto dlogits_TV = logits_TV.detach();  // same memory: the logits are not needed again
  kernels::cross_entropy_backward_(dlogits_TV, max_T, sum_exp_T, targets_T, vocab_begin_, 1.0, z_loss_);
  return model::with_gradient(logits_TV, loss, dlogits_TV);
}

void VocabParallelLossHead::declare(Phase phase, std::int64_t rows, model::Declaration& out) const {
  projection_.declare(phase, rows, out);
  if (phase != Phase::forward) return;
  RowOutline o(exchange_, what_, rows, out);
  declare_row_statistics(o);
}

}  // namespace orthant::tp
