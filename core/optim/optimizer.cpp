// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/optim/optimizer.hpp>

#include <orthant/core/base/error.hpp>

namespace orthant::optim {
namespace {

class AdamW : public Optimizer {
 public:
  explicit AdamW(AdamWOptions options) : options_(options) {}
  void step(ShardState& shard, double lr, std::int64_t step, double grad_scale) override {
    options_.lr = lr;
    adamw_step(shard, options_, step, grad_scale);
  }

 private:
  AdamWOptions options_;
};

class Sgd : public Optimizer {
 public:
  explicit Sgd(SgdOptions options) : options_(options) {}
  void step(ShardState& shard, double lr, std::int64_t, double grad_scale) override {
    options_.lr = lr;
    sgd_step(shard, options_, grad_scale);
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
