// SPDX-License-Identifier: Apache-2.0
// Embedding and loss head with the vocabulary cut over the tp axis. Shards are ranges of tokens, nearly equal and not
// padded: a rank may have one row less than another, or none. The head never forms full logits: per row, the largest
// logit and two sums travel. Source: Shoeybi et al. 2019 (Megatron-LM), section 3.
#pragma once

#include <orthant/core/model/layer_factory.hpp>
#include <orthant/tp/parallel_linear.hpp>
#include <orthant/tp/row_exchange.hpp>

namespace orthant::tp {

// N, T rows as in row_exchange.hpp  V vocabulary on this rank (may be 0)  D model

/// A shard of the vocabulary: weight [V, D], and the token of its first row.
struct VocabShard {
  model::Parameter& weight;
  std::int64_t begin = 0;
};

class VocabParallelEmbedding final : public model::Embedding {
 public:
  VocabParallelEmbedding(VocabShard shard, RowExchange exchange, std::string what)
      : shard_(shard), exchange_(std::move(exchange)), what_(std::move(what)) {}

  at::Tensor forward(const at::Tensor& tokens_T, model::LayerPass& pass) override;
  void backward_weight(const at::Tensor& grad_ND, const at::Tensor& tokens_T, model::LayerPass& pass) override;
  void declare(Phase phase, std::int64_t rows, model::Declaration& out) const override;

 private:
  VocabShard shard_;
  RowExchange exchange_;
  std::string what_;
};

/// Largest logit and sum of exponentials of whole rows, and the loss that they give.
struct RowStatistics {
  at::Tensor max_T;
  at::Tensor sum_exp_T;
  at::Tensor loss;  ///< scalar: summed over the rows
};

/// Of rows with these logits on this rank: two all_reduces. z_loss  as cross_entropy_backward_()'s; 0 outside training.
RowStatistics row_statistics(const at::Tensor& logits_TV, const at::Tensor& targets_T, std::int64_t vocab_begin,
                             double z_loss, const RowExchange& exchange, model::LayerPass& pass);
/// The same in a Declaration.
void declare_row_statistics(RowOutline& o);

/// All logits of this rank's tokens at once; they turn into their own gradient.
class VocabParallelLossHead final : public model::LossHead {
 public:
  VocabParallelLossHead(VocabShard shard, RowExchange exchange, double z_loss, std::string what)
      : vocab_begin_(shard.begin),
        z_loss_(z_loss),
        exchange_(exchange),
        projection_(shard.weight, std::move(exchange), what),
        what_(std::move(what)) {}

  at::Tensor forward(const at::Tensor& x_ND, const at::Tensor& targets_T, model::LayerPass& pass) override;
  void declare(Phase phase, std::int64_t rows, model::Declaration& out) const override;

 private:
  std::int64_t vocab_begin_;
  double z_loss_;
  RowExchange exchange_;
  ColumnParallel projection_;
  std::string what_;
};

}  // namespace orthant::tp
