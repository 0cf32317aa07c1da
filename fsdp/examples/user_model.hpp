// SPDX-License-Identifier: Apache-2.0
// A small model as somebody else might have written it: torch::nn only, nothing of Orthant in it. Its blocks differ in
// layout, take a mask that no gradient passes, and have the oddities that real models have: a weight used twice, a
// parameter that is never used, one without dimensions.
#pragma once

#include <cmath>
#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

namespace user_model {

// B batch  S sequence  D width  V vocabulary

struct Sizes {
  std::int64_t vocabulary = 13;
  std::int64_t sequence = 6;
  std::int64_t width = 8;
};

struct Embed : torch::nn::Module {
  explicit Embed(const Sizes& sizes)
      : tokens(register_module("tokens", torch::nn::Embedding(sizes.vocabulary, sizes.width))),
        positions(register_parameter("positions", at::full({sizes.sequence, sizes.width}, 0.01))) {}

  at::Tensor forward(const at::Tensor& tokens_BS) { return tokens->forward(tokens_BS) + positions; }

  torch::nn::Embedding tokens;
  at::Tensor positions;
};

struct Block : torch::nn::Module {
  Block(const Sizes& sizes, std::int64_t hidden)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({sizes.width})))),
        qkv(register_module("qkv",
                            torch::nn::Linear(torch::nn::LinearOptions(sizes.width, 3 * sizes.width).bias(false)))),
        mix(register_module("mix", torch::nn::Conv1d(torch::nn::Conv1dOptions(sizes.width, hidden, 1)))),
        tied(register_module("tied", torch::nn::Linear(hidden, hidden))),
        down(register_module("down", torch::nn::Linear(hidden, sizes.width))),
        gain(register_parameter("gain", at::full({}, 0.5))),
        spare(register_parameter("spare", at::full({3, 5}, 1.0))) {}

  /// x_BSD, visible_BSS bool: may a position (row) see another (column)?
  at::Tensor forward(const at::Tensor& x_BSD, const at::Tensor& visible_BSS) {
    const auto parts = qkv->forward(norm->forward(x_BSD)).chunk(3, -1);
    const auto scores_BSS = at::matmul(parts[0], parts[1].transpose(1, 2)) / std::sqrt(parts[0].size(-1));
    const auto attention_BSS = scores_BSS.masked_fill(visible_BSS.logical_not(), -1e9).softmax(-1);
    const auto y_BSD = x_BSD + gain * at::matmul(attention_BSS, parts[2]);
    const auto hidden = at::relu(mix->forward(y_BSD.transpose(1, 2)).transpose(1, 2));
    return y_BSD + down->forward(tied->forward(at::relu(tied->forward(hidden))));
  }

  torch::nn::LayerNorm norm;
  torch::nn::Linear qkv;
  torch::nn::Conv1d mix;
  torch::nn::Linear tied;  ///< used twice
  torch::nn::Linear down;
  at::Tensor gain;
  at::Tensor spare;  ///< never used
};

struct Head : torch::nn::Module {
  explicit Head(const Sizes& sizes)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({sizes.width})))),
        out(register_module("out",
                            torch::nn::Linear(torch::nn::LinearOptions(sizes.width, sizes.vocabulary).bias(false)))) {}

  at::Tensor forward(const at::Tensor& x_BSD) { return out->forward(norm->forward(x_BSD)); }

  torch::nn::LayerNorm norm;
  torch::nn::Linear out;
};

struct Model {
  explicit Model(const Sizes& sizes)
      : embed(std::make_shared<Embed>(sizes)),
        first(std::make_shared<Block>(sizes, 12)),
        second(std::make_shared<Block>(sizes, 7)),
        third(std::make_shared<Block>(sizes, 20)),
        head(std::make_shared<Head>(sizes)) {}

  std::shared_ptr<Embed> embed;
  std::shared_ptr<Block> first, second, third;
  std::shared_ptr<Head> head;
};

struct Batch {
  at::Tensor tokens_BS;
  at::Tensor visible_BSS;
  at::Tensor labels_BS;
};

/// Samples [begin, end) of an endless text in steps of 3 or 5, which only the last two tokens tell; sample i sees
/// i % 3 + 2 positions back.
inline Batch make_batch(const Sizes& sizes, std::int64_t begin, std::int64_t end) {
  const auto sample_B1 = at::arange(begin, end, at::kLong).unsqueeze(1);
  const auto position_S = at::arange(sizes.sequence + 1, at::kLong);
  const auto text = (sample_B1 * 7 + position_S * (sample_B1 % 2 * 2 + 3)) % sizes.vocabulary;
  const auto i = position_S.narrow(0, 0, sizes.sequence).view({1, -1, 1}), j = i.transpose(1, 2);
  const auto back = (sample_B1 % 3 + 2).unsqueeze(2);
  return {.tokens_BS = text.narrow(1, 0, sizes.sequence),
          .visible_BSS = j.le(i).logical_and((i - j).lt(back)),
          .labels_BS = text.narrow(1, 1, sizes.sequence)};
}

/// Sum over the batch's tokens.
inline at::Tensor loss_sum(const at::Tensor& logits_BSV, const at::Tensor& labels_BS) {
  return at::cross_entropy_loss(logits_BSV.flatten(0, 1), labels_BS.flatten(), {}, at::Reduction::Sum);
}

}  // namespace user_model
