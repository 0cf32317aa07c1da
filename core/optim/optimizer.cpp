// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/optim/optimizer.hpp>

#include <orthant/core/base/error.hpp>

namespace orthant::optim {
namespace {

/// With what the slice's parameter group says.
template <class Options>
Options of_group(Options options, const ShardState& shard, double lr) {
  options.lr = lr * shard.lr_scale;
  options.weight_decay = shard.weight_decay.value_or(options.weight_decay);
  return options;
}

class AdamW : public Optimizer {
 public:
  explicit AdamW(AdamWOptions options) : options_(options) {}
  void step(ShardState& shard, double lr, double grad_scale) override {
    adamw_step(shard, of_group(options_, shard, lr), grad_scale);
  }

 private:
  AdamWOptions options_;
};

class Sgd : public Optimizer {
 public:
  explicit Sgd(SgdOptions options) : options_(options) {}
  void step(ShardState& shard, double lr, double grad_scale) override {
    sgd_step(shard, of_group(options_, shard, lr), grad_scale);
  }

 private:
  SgdOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options) {
  switch (options.kind) {
    case OptimizerKind::adamw:
      return std::make_unique<AdamW>(options.adamw);
    case OptimizerKind::sgd:
      return std::make_unique<Sgd>(options.sgd);
  }
  throw InternalError("make_optimizer: unknown kind");
}

}  // namespace orthant::optim
