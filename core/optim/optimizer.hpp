// SPDX-License-Identifier: Apache-2.0
// Optimizers step one flat slice at a time: gradient scale (tokens, clipping), moments, decay, master and bf16 weights
// in one pass over memory. Each element's result is the same bits at any offset and with any number of threads.
#pragma once

#include <cstdint>
#include <memory>

#include <orthant/core/optim/shard_state.hpp>

namespace orthant::optim {

enum class OptimizerKind : std::uint8_t { adamw, sgd };

/// Source  Loshchilov and Hutter 2019, "Decoupled weight decay regularization"; the numbers of torch.optim.AdamW.
struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  ///< only where shard.decays
};

/// The numbers of torch.optim.SGD (decay is part of the gradient; no dampening).
struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0.0;
  double weight_decay = 0.0;  ///< only where shard.decays
};

/// Counts shard.updates, which the bias correction goes by.
/// grad_scale  the gradient is multiplied by it first.
/// Updates master and both moments; writes `weight` (nearest even) where that is a bf16 tensor of its own.
/// Throws      ShapeError when the slice's tensors do not fit together.
void adamw_step(ShardState& shard, const AdamWOptions& options, double grad_scale);

/// Likewise; the momentum is kept in exp_avg, which is not touched without momentum.
void sgd_step(ShardState& shard, const SgdOptions& options, double grad_scale);

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;
  AdamWOptions adamw;
  SgdOptions sgd;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// lr from the schedule replaces the options' lr.
  virtual void step(ShardState& shard, double lr, double grad_scale) = 0;
};

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options);

}  // namespace orthant::optim
