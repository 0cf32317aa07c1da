// SPDX-License-Identifier: Apache-2.0
// The example's model with values that are a function of their place, for tests that run it whole and sharded.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>
#include <torch/nn/module.h>

#include <orthant/fsdp/examples/user_model.hpp>
#include <orthant/fsdp/modules/data_rank.hpp>
#include <orthant/fsdp/modules/sharded_modules.hpp>
#include <orthant/tests/harness/run_ranks.hpp>

namespace orthant::fsdp {

inline constexpr user_model::Sizes kSizes;

inline void set_values(torch::nn::Module& module, double phase, at::ScalarType type) {
  module.to(type);
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters()) {
    const auto places = at::arange(parameter.numel(), at::TensorOptions(type)).view(parameter.sizes());
    parameter.copy_(at::sin(places * 0.37 + phase) * 0.3);
    phase += 1;
  }
}

/// Rank 0's values are the ones that count, so the other ranks are given others.
struct TestModel : user_model::Model {
  explicit TestModel(int rank, at::ScalarType type = at::kDouble) : Model(kSizes) {
    double phase = 100.0 * rank;
    for (const ModuleUnit& unit : units()) set_values(*unit.module, phase += 10, type);
  }

  std::vector<ModuleUnit> units() const {
    return {{.name = "embed", .module = embed, .kind = shard::UnitKind::embedding},
            {.name = "first", .module = first},
            {.name = "second", .module = second},
            {.name = "third", .module = third},
            {.name = "head", .module = head, .kind = shard::UnitKind::head}};
  }

  at::Tensor loss(ShardedModules& sharded, const user_model::Batch& batch) const {
    auto x_BSD = sharded.forward(embed, batch.tokens_BS);
    for (const auto& block : {first, second, third}) x_BSD = sharded.forward(block, x_BSD, batch.visible_BSS);
    return user_model::loss_sum(sharded.forward(head, x_BSD), batch.labels_BS);
  }

  at::Tensor loss(const user_model::Batch& batch) const {
    auto x_BSD = embed->forward(batch.tokens_BS);
    for (const auto& block : {first, second, third}) x_BSD = block->forward(x_BSD, batch.visible_BSS);
    return user_model::loss_sum(head->forward(x_BSD), batch.labels_BS);
  }
};

}  // namespace orthant::fsdp
