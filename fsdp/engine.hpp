// SPDX-License-Identifier: Apache-2.0
// YaFSDP (ZeRO stage 3): each rank owns 1/degree of every flat unit. Weights are gathered before use into buffers that
// are allocated once, gradients are reduce-scattered out of buffers that are allocated once. No task waits for another
// by hand: who must wait for whom follows from what each claims. Source: YaFSDP (yandex/YaFSDP); Rajbhandari et al.
// 2020 (ZeRO).
#pragma once

#include <functional>
#include <unordered_map>
#include <vector>

#include <orthant/core/base/dtype.hpp>
#include <orthant/core/comm/lane.hpp>
#include <orthant/core/model/parameter.hpp>
#include <orthant/core/optim/make_shard.hpp>
#include <orthant/core/stream/scheduler.hpp>
#include <orthant/core/train/param_lifecycle.hpp>
#include <orthant/core/train/shard_store.hpp>
#include <orthant/core/train/stage_layout.hpp>

namespace orthant::fsdp {

/// Two communicators over the shard axis, so that a gather need not queue behind a reduction.
struct Lanes {
  comm::Lane gather;
  comm::Lane reduce;
};

struct Options {
  DType precision = DType::f32;  ///< of weights; masters and gradients are fp32 beside bf16
  train::Residency residency = train::Residency::chunk;
  /// Residency::layer: weight (and gradient) buffers that blocks take turns in. 2 gathers one layer ahead; 1 saves a
  /// layer's memory and overlaps nothing.
  int alternating_buffers = 2;
  std::function<double(std::int64_t bytes)> cost_us =
      {};  ///< predicted duration of a collective over a whole unit, for the virtual clock
};

class Engine final : public train::ParamLifecycle, public train::GradSync, public train::ShardStore {
 public:
  /// Allocates shards and buffers of all units of the table, fills the shards, and binds the store's parameters to the
  /// buffers. Submits one task, which stands for the initial shards. Every rank's table must hold the same units.
  /// Throws  InternalError when blocks that share a buffer differ in layout.
  Engine(const shard::ParameterTable& table, model::ParameterStore& store, stream::Scheduler& scheduler, Lanes lanes,
         const optim::InitialWeights& initial, Options options);

  /// Nothing is submitted when the unit's buffer holds these weights already.
  void unshard(UnitId) override;
  /// The buffer counts as empty: the next unshard() gathers again, and claims reject a use before it.
  void reshard(UnitId) override;
  stream::Claim weights(UnitId) const override;

  Claims contribute(UnitId) override;
  /// The first reduction after next_weights() replaces the gradient shard, later ones add to it.
  void reduce(UnitId) override;

  std::vector<optim::ShardState>& shards() override { return shards_; }
  stream::Claim gradient(UnitId) const override;
  stream::Claim next_weights(UnitId) override;

 private:
  struct Buffer {
    at::Tensor memory;
    stream::BufferId id;
    stream::Content content = 0;  ///< after everything that was submitted
  };
  struct Unit {
    std::string name;
    int buffer = 0;  ///< index into weights_ and grads_
    std::size_t shard = 0;
    std::vector<at::Tensor> gaps;  ///< of the gradient buffer
    stream::BufferId shard_weights;
    stream::BufferId shard_grad;
    std::int64_t step = 0;           ///< how often the weights were advanced
    std::int64_t serial = 0;         ///< how often the gradient was reduced
    std::int64_t contributions = 0;  ///< to the gradient, since the last reduction
    bool reduced = false;            ///< in this step
  };

  Unit& at(UnitId id) { return units_.at(id); }
  stream::Claim unreduced(UnitId id) const;
  double cost_us(const Buffer& buffer) const;

  stream::Scheduler& scheduler_;
  Lanes lanes_;
  std::function<double(std::int64_t)> cost_us_;
  std::vector<Buffer> weights_;
  std::vector<Buffer> grads_;
  std::unordered_map<UnitId, Unit> units_;
  std::vector<optim::ShardState> shards_;
};

}  // namespace orthant::fsdp
