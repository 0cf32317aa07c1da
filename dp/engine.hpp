// SPDX-License-Identifier: Apache-2.0
// Data parallelism with replicated weights (ZeRO stage 0): every rank holds and steps every unit; gradients are summed
// by all-reduce, bucket by bucket, while earlier layers' backward still runs.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include <orthant/core/base/dtype.hpp>
#include <orthant/core/comm/lane.hpp>
#include <orthant/core/model/parameter.hpp>
#include <orthant/core/optim/make_shard.hpp>
#include <orthant/core/stream/scheduler.hpp>
#include <orthant/core/train/param_lifecycle.hpp>
#include <orthant/core/train/shard_store.hpp>
#include <orthant/dp/buckets.hpp>

namespace orthant::dp {

struct Options {
  DType precision = DType::f32;  ///< of weights; masters and gradients are fp32 beside bf16
  DType moments = DType::f32;    ///< of the optimizer: bf16, or the master's type
  std::int64_t bucket_bytes = 25 << 20;
  std::function<double(std::int64_t bytes)> cost_us =
      {};  ///< predicted duration of an all-reduce, for the virtual clock
};

class Engine final : public train::ParamLifecycle, public train::GradSync, public train::ShardStore {
 public:
  /// Allocates weights, gradients and moments of all units of the table, fills the weights, and binds the store's
  /// parameters to them. Submits one task, which stands for the initial weights. reduce  lane over the dp axis; every
  /// rank's table must hold the same units.
  Engine(const shard::ParameterTable& table, model::ParameterStore& store, stream::Scheduler& scheduler,
         comm::Lane reduce, const optim::InitialWeights& initial, Options options);

  void begin_step(std::int64_t step) override { training_step_ = step; }
  bool trains(UnitId id) const override { return training_step_ >= units_.at(id).frozen_steps; }
  void unshard(UnitId) override {}
  void reshard(UnitId) override {}
  stream::Claim weights(UnitId) const override;

  /// Contributions to a unit end with reduce(); all of them come before the step's gradient is used.
  Claims contribute(UnitId) override;
  /// The last unit of a bucket, of those that train in this step, submits the bucket's all-reduce.
  void reduce(UnitId, bool last) override;

  std::vector<optim::ShardState>& shards() override { return shards_; }
  stream::Claim gradient(UnitId) const override;
  stream::Claim slice(UnitId id) const override { return weights(id); }
  stream::Claim next_weights(UnitId) override;

 private:
  struct Unit {
    stream::BufferId weights;
    stream::BufferId grads;
    std::int64_t frozen_steps = 0;
    int bucket = -1;                 ///< none where it never trains
    std::int64_t step = 0;           ///< how often the weights were advanced
    std::int64_t serial = 0;         ///< how often the gradient was reduced
    std::int64_t contributions = 0;  ///< to the gradient, since the last reduction
    bool complete = false;           ///< reduce() was called, its bucket still waits for others
  };
  struct BucketState {
    std::string name;
    Bucket plan;
    at::Tensor grads;
  };

  Unit& at(UnitId id) { return units_.at(id); }
  stream::Claim unreduced(UnitId id) const;
  void submit(BucketState& bucket);

  bool is_complete(const BucketState& bucket) const;

  model::ParameterStore& store_;
  stream::Scheduler& scheduler_;
  comm::Lane lane_;
  std::function<double(std::int64_t)> cost_us_;
  std::int64_t training_step_ = 0;
  std::unordered_map<UnitId, Unit> units_;
  std::vector<BucketState> buckets_;
  std::vector<optim::ShardState> shards_;
};

}  // namespace orthant::dp
