// SPDX-License-Identifier: Apache-2.0
// Every sharded layer alone against the dense one with the same full weights.
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <orthant/tests/tp/parity.hpp>

namespace orthant::tp::tests {
namespace {

using model::Declaration;
using model::LayerPass;

constexpr UnitId kUnit{0};
constexpr std::int64_t kRows = 48;  // 24 positions x 2 sequences: divides by every degree
constexpr std::int64_t kVocab = 97;
constexpr std::int64_t kHidden = 20;

std::vector<shard::FlatUnit> one_unit() { return {{.id = kUnit, .name = "unit", .regions = {}, .parameters = {}}}; }

/// Divisible by every degree where it must be; key/value heads fewer than heads.
model::ModelConfig config_for(int tp) {
  return {.hidden = kHidden, .heads = 6 * tp, .kv_heads = 2 * tp, .head_dim = 2, .ffn = 13, .vocab = kVocab};
}

at::Tensor some_tokens() { return at::randint(kVocab, {kRows}, at::kLong); }

/// With rows that do not count.
at::Tensor some_targets() {
  auto targets = some_tokens();
  targets.narrow(0, 5, 7).fill_(-1);
  targets[kRows - 1] = -1;
  return targets;
}

class LinearSubject final : public Subject {
 public:
  explicit LinearSubject(std::unique_ptr<model::Linear> linear) : linear_(std::move(linear)) {}
  at::Tensor forward(const at::Tensor& input, LayerPass& pass) override {
    input_ = input.detach().requires_grad_();
    return output_ = linear_->forward(input_, pass);
  }
  void declare(Phase phase, Declaration& out) const override { linear_->declare(phase, kRows, out); }

 private:
  std::unique_ptr<model::Linear> linear_;
};

class EmbeddingSubject final : public Subject {
 public:
  explicit EmbeddingSubject(model::LayerFactory& factory)
      : embedding_(factory.embedding(kUnit, "model.embed_tokens.weight")) {}
  at::Tensor forward(const at::Tensor& tokens, LayerPass& pass) override {
    input_ = tokens;
    return embedding_->forward(tokens, pass);
  }
  at::Tensor backward(const at::Tensor& output_grad, LayerPass&) override {
    output_grad_ = output_grad;
    return {};
  }
  void backward_weight(LayerPass& pass) override { embedding_->backward_weight(output_grad_, input_, pass); }
  void declare(Phase phase, Declaration& out) const override { embedding_->declare(phase, kRows, out); }

 private:
  std::unique_ptr<model::Embedding> embedding_;
  at::Tensor output_grad_;
};

class HeadSubject final : public Subject {
 public:
  HeadSubject(model::LayerFactory& factory, at::Tensor targets)
      : head_(factory.loss_head(kUnit, "lm_head.weight")), targets_(std::move(targets)) {}
  at::Tensor forward(const at::Tensor& input, LayerPass& pass) override {
    input_ = input.detach().requires_grad_();
    return output_ = head_->forward(input_, targets_, pass);
  }
  void declare(Phase phase, Declaration& out) const override { head_->declare(phase, kRows, out); }

 private:
  std::unique_ptr<model::LossHead> head_;
  at::Tensor targets_;
};

/// An embedding and the head of the same weight, as on one pipeline stage.
class TiedSubject final : public Subject {
 public:
  TiedSubject(model::LayerFactory& factory, at::Tensor targets)
      : embedding_(factory.embedding(kUnit, "model.embed_tokens.weight")),
        head_(factory.loss_head(kUnit, "model.embed_tokens.weight")),
        targets_(std::move(targets)) {}
  at::Tensor forward(const at::Tensor& tokens, LayerPass& pass) override {
    tokens_ = tokens;
    input_ = embedding_->forward(tokens, pass).requires_grad_();
    return output_ = head_->forward(input_, targets_, pass);
  }
  at::Tensor backward(const at::Tensor& output_grad, LayerPass& pass) override {
    Subject::backward(output_grad, pass);
    return {};
  }
  void backward_weight(LayerPass& pass) override {
    pass.run_deferred();
    embedding_->backward_weight(input_.grad(), tokens_, pass);
  }
  void declare(Phase phase, Declaration& out) const override {
    if (phase == Phase::forward) embedding_->declare(phase, kRows, out);
    head_->declare(phase, kRows, out);
    if (phase != Phase::forward) embedding_->declare(phase, kRows, out);
  }

 private:
  std::unique_ptr<model::Embedding> embedding_;
  std::unique_ptr<model::LossHead> head_;
  at::Tensor targets_, tokens_;
};

/// in, out  what a rank has of the input and the output.
void expect_linear_parity(const model::LinearSpec& spec, Cut in, Cut out, const Cell& cell) {
  std::int64_t features = 0;
  for (const auto& part : spec.parts) features += part.out;
  expect_parity({.input = at::randn({kRows, spec.in}, at::kDouble),
                 .output_grad = at::randn({kRows, features}, at::kDouble),
                 .input_part = std::move(in),
                 .output_part = std::move(out),
                 .units = one_unit(),
                 .make = [&](model::LayerFactory& factory,
                             model::Parameters) { return std::make_unique<LinearSubject>(factory.linear(spec)); }},
                config_for(cell.tp), cell);
}

class Layers : public CellTest {};
INSTANTIATE_TEST_SUITE_P(Cells, Layers, testing::ValuesIn(all_cells()), name_of);

TEST_P(Layers, FusedColumnParallelWithFewerKeyValueHeadsEqualsTheDenseOne) {
  const auto config = config_for(GetParam().tp);
  const auto query = config.heads * config.head_dim, key_value = config.kv_heads * config.head_dim;
  expect_linear_parity(
      {.role = model::LinearRole::column,
       .unit = kUnit,
       .in = kHidden,
       .parts = {{"q_proj.weight", query}, {"k_proj.weight", key_value}, {"v_proj.weight", key_value}}},
      {}, {.kind = Cut::Kind::columns, .parts = {query, key_value, key_value}}, GetParam());
}

// 13 features are cut unevenly, and the same way in gate, up and down.
TEST_P(Layers, ColumnParallelOfUnevenShardsEqualsTheDenseOne) {
  expect_linear_parity({.role = model::LinearRole::column,
                        .unit = kUnit,
                        .in = kHidden,
                        .parts = {{"gate_proj.weight", 13}, {"up_proj.weight", 13}}},
                       {}, {.kind = Cut::Kind::columns, .parts = {13, 13}}, GetParam());
}

TEST_P(Layers, RowParallelEqualsTheDenseOne) {
  expect_linear_parity(
      {.role = model::LinearRole::row, .unit = kUnit, .in = 13, .parts = {{"down_proj.weight", kHidden}}},
      {.kind = Cut::Kind::columns, .parts = {13}}, {}, GetParam());
}

TEST_P(Layers, VocabParallelEmbeddingEqualsTheDenseOne) {
  expect_parity({.input = some_tokens(),
                 .output_grad = at::randn({kRows, kHidden}, at::kDouble),
                 .input_part = {.kind = Cut::Kind::whole, .parts = {}},
                 .output_part = {},
                 .units = one_unit(),
                 .make = [](model::LayerFactory& factory,
                            model::Parameters) { return std::make_unique<EmbeddingSubject>(factory); }},
                config_for(GetParam().tp), GetParam());
}

void expect_head_parity(const model::ModelConfig& config, const Cell& cell) {
  expect_parity({.input = at::randn({kRows, kHidden}, at::kDouble),
                 .output_grad = at::ones({}, at::kDouble),
                 .input_part = {},
                 .output_part = {.kind = Cut::Kind::whole, .parts = {}},
                 .units = one_unit(),
                 .make = [targets = some_targets()](
                             model::LayerFactory& factory,
                             model::Parameters) { return std::make_unique<HeadSubject>(factory, targets); }},
                config, cell);
}

TEST_P(Layers, VocabParallelLossHeadEqualsTheDenseOne) { expect_head_parity(config_for(GetParam().tp), GetParam()); }

// 48 rows in chunks of 10; a chunk is longer than the rows, too.
TEST_P(Layers, LossHeadByChunksEqualsTheDenseOne) {
  for (const std::int64_t rows : {10, 100}) {
    auto config = config_for(GetParam().tp);
    config.loss_rows = rows;
    config.z_loss = 0.01;
    expect_head_parity(config, GetParam());
  }
}

TEST_P(Layers, TiedEmbeddingAndHeadAddIntoOneGradient) {
  expect_parity({.input = some_tokens(),
                 .output_grad = at::ones({}, at::kDouble),
                 .input_part = {.kind = Cut::Kind::whole, .parts = {}},
                 .output_part = {.kind = Cut::Kind::whole, .parts = {}},
                 .units = one_unit(),
                 .make = [targets = some_targets()](
                             model::LayerFactory& factory,
                             model::Parameters) { return std::make_unique<TiedSubject>(factory, targets); }},
                config_for(GetParam().tp), GetParam());
}

// A vocabulary of 3 over 4 or 8 ranks leaves some without a token.
TEST_P(Layers, TiedEmbeddingAndHeadWorkOnRanksWithoutTokens) {
  auto config = config_for(GetParam().tp);
  config.vocab = 3;
  expect_parity({.input = some_tokens().remainder(3),
                 .output_grad = at::ones({}, at::kDouble),
                 .input_part = {.kind = Cut::Kind::whole, .parts = {}},
                 .output_part = {.kind = Cut::Kind::whole, .parts = {}},
                 .units = one_unit(),
                 .make = [targets = some_tokens().remainder(4).sub(1)](
                             model::LayerFactory& factory,
                             model::Parameters) { return std::make_unique<TiedSubject>(factory, targets); }},
                config, GetParam());
}

}  // namespace
}  // namespace orthant::tp::tests
