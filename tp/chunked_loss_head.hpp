// SPDX-License-Identifier: Apache-2.0
// The loss head without logits: they are made for a few rows at a time, used, and made again in backward. What stays of
// forward are two numbers a row. The price is one more product of the head's size a step; under the B/W split, another
// in W.
#pragma once

#include <orthant/tp/vocab_parallel.hpp>

namespace orthant::tp {

// N, T rows as in row_exchange.hpp  V vocabulary on this rank (may be 0)  D model  C rows of a chunk

struct ChunkedLossOptions {
  std::int64_t rows = 0;  ///< of a chunk, of the whole sequence's: C <= rows
  double z_loss = 0;
};

class ChunkedLossHead final : public model::LossHead {
 public:
  ChunkedLossHead(VocabShard shard, RowExchange exchange, const ChunkedLossOptions& options, std::string what)
      : shard_(shard), exchange_(std::move(exchange)), options_(options), what_(std::move(what)) {}

  at::Tensor forward(const at::Tensor& x_ND, const at::Tensor& targets_T, model::LayerPass& pass) override;
  void declare(Phase phase, std::int64_t rows, model::Declaration& out) const override;

 private:
  struct Function;
  struct Saved {
    at::Tensor x_ND, targets_T;
    at::Tensor max_T, sum_exp_T;
  };

  /// Fills the statistics. Returns the loss.
  at::Tensor reduce(Saved& saved, model::LayerPass& pass) const;
  /// Returns dx.
  at::Tensor backward(const Saved& saved, model::LayerPass& pass);
  at::Tensor logits(const at::Tensor& x_CD) const;
  /// d loss / d logits of rows [first, first + C).
  at::Tensor logits_gradient(const at::Tensor& x_CD, const Saved& saved, std::int64_t first) const;
  void accumulate(const at::Tensor& dlogits_CV, const at::Tensor& x_CD);

  VocabShard shard_;
  RowExchange exchange_;
  ChunkedLossOptions options_;
  std::string what_;
};

}  // namespace orthant::tp
