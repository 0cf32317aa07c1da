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

  void unshard(UnitId) override {}
  void reshard(UnitId) override {}
  stream::Claim weights(UnitId) const override;

  /// Contributions to a unit end with reduce(); all of them come before the step's gradient is used.
  Claims contribute(UnitId) override;
  /// The last unit of a bucket submits the bucket's all-reduce.
  void reduce(UnitId) override;

  std::vector<optim::ShardState>& shards() override { return shards_; }
  stream::Claim gradient(UnitId) const override;
  stream::Claim next_weights(UnitId) override;

 private:
  struct Unit {
    stream::BufferId weights;
    stream::BufferId grads;
    int bucket = 0;
    std::int64_t step = 0;           ///< how often the weights were advanced
    std::int64_t serial = 0;         ///< how often the gradient was reduced
    std::int64_t contributions = 0;  ///< to the gradient, since the last reduction
    bool complete = false;           ///< reduce() was called, its bucket still waits for others
  };
  struct BucketState {
    std::string name;
    Bucket plan;
    at::Tensor grads;
    int complete = 0;
  };

  Unit& at(UnitId id) { return units_.at(id); }
  stream::Claim unreduced(UnitId id) const;
  void submit(BucketState& bucket);

  stream::Scheduler& scheduler_;
  comm::Lane lane_;
  std::function<double(std::int64_t)> cost_us_;
  std::unordered_map<UnitId, Unit> units_;
  std::vector<BucketState> buckets_;
  std::vector<optim::ShardState> shards_;
};

}  // namespace orthant::dp
