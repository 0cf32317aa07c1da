// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/dense_factory.hpp>

#include <orthant/core/model/differentiable.hpp>
#include <orthant/core/model/kernels/cross_entropy.hpp>
#include <orthant/core/model/kernels/embedding.hpp>

namespace orthant::model {
namespace {

class DenseLinear : public Linear {
 public:
  explicit DenseLinear(Parameter& weight) : weight_(weight) {}
  at::Tensor forward(const at::Tensor& x, LayerPass& pass) override { return linear(x, weight_, pass); }
  void declare(Phase, std::int64_t, Declaration&) const override {}

 private:
  Parameter& weight_;
};

class DenseEmbedding : public Embedding {
 public:
  explicit DenseEmbedding(Parameter& weight) : weight_(weight) {}
  at::Tensor forward(const at::Tensor& tokens, LayerPass&) override {
    return kernels::embedding_forward(weight_.weight, tokens, 0);
  }
  void backward_weight(const at::Tensor& grad, const at::Tensor& tokens, LayerPass&) override {
    if (!weight_.trains) return;
    kernels::embedding_backward(grad, tokens, 0, weight_.grad, weight_.next_contribution());
  }
  void declare(Phase, std::int64_t, Declaration&) const override {}

 private:
  Parameter& weight_;
};

class DenseLossHead : public LossHead {
 public:
  explicit DenseLossHead(Parameter& weight, double z_loss) : weight_(weight), z_loss_(z_loss) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& targets, LayerPass& pass) override {
    auto logits_NV = linear(x, weight_, pass);
    const auto max_N = kernels::row_max(logits_NV);
    const auto sums_2N = kernels::shard_sums(logits_NV, max_N, targets, 0);
    auto loss = kernels::sum_losses(sums_2N[0], sums_2N[1], targets);
    if (!pass.training) return loss;
    if (z_loss_ > 0) loss.add_(kernels::sum_z_losses(max_N, sums_2N[0], targets), z_loss_);
    auto dlogits_NV = logits_NV.detach();  // same memory: the logits are not needed again
    kernels::cross_entropy_backward_(dlogits_NV, max_N, sums_2N[0], targets, 0, 1.0, z_loss_);
    return with_gradient(logits_NV, loss, dlogits_NV);
  }
  void declare(Phase, std::int64_t, Declaration&) const override {}

 private:
  Parameter& weight_;
  double z_loss_;
};

}  // namespace

std::unique_ptr<Linear> DenseFactory::linear(const LinearSpec& spec) {
  std::vector<shard::ParameterTable::Part> parts;
  for (const auto& part : spec.parts) parts.push_back({part.name, shard::replicate({part.out, spec.in})});
  return std::make_unique<DenseLinear>(declare(parameters_, spec.unit, parts));
}

std::unique_ptr<Embedding> DenseFactory::embedding(UnitId unit, const std::string& name) {
  return std::make_unique<DenseEmbedding>(
      declare(parameters_, unit, {{name, shard::replicate({config_.vocab, config_.hidden})}}));
}

std::unique_ptr<LossHead> DenseFactory::loss_head(UnitId unit, const std::string& name) {
  return std::make_unique<DenseLossHead>(
      declare(parameters_, unit, {{name, shard::replicate({config_.vocab, config_.hidden})}}), config_.z_loss);
}

}  // namespace orthant::model
