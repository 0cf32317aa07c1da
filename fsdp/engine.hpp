// SPDX-License-Identifier: Apache-2.0
// YaFSDP (ZeRO stages 1 to 3 are one engine, with other residencies): each rank owns 1/degree of every flat unit.
// Weights are gathered before use, gradients are reduce-scattered, both in buffers that are allocated once. No task
// waits for another by hand: who must wait for whom follows from what each claims. Source: YaFSDP (yandex/YaFSDP);
// Rajbhandari et al. 2020 (ZeRO).
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

/// Gather and reduction over the shard axis: two communicators, so that a gather need not queue behind a reduction, or
/// the same one twice.
struct Lanes {
  comm::Lane gather;
  comm::Lane reduce;
  comm::Lane replica = {};        ///< hybrid sharding: the ranks that hold the same slices; null where there are none
  stream::StreamId compute = {};  ///< for casts to a narrow wire
};

struct Options {
  DType precision = DType::f32;  ///< of weights; masters and gradients are fp32 beside bf16
  train::Residencies residency = {};
  /// Stages 1 and 2: weights stay whole from one optimizer step to the next, and a rank's slice is a part of them. With
  /// gradients that stay until the last micro-batch (stage 1), their slice is a part of theirs, too.
  bool keeps_weights = false;
  /// bf16: gradients travel as bf16 and are summed in fp32. Those of fp64 weights travel as they are.
  DType wire = DType::f32;
  DType moments = DType::f32;  ///< of the optimizer: bf16, or the master's type
  /// Residency::layer: buffers that blocks take turns in. 2 gathers one layer ahead; 1 saves a layer's memory and
  /// overlaps nothing.
  int alternating_buffers = 2;
  /// Predicted duration of a collective over a whole unit, for the virtual clock.
  std::function<double(std::int64_t bytes)> cost_us = {};

  /// Gradients are cast before they travel.
  bool narrows() const { return wire == DType::bf16 && precision != DType::f64; }
  /// A rank's gradient slice is a part of the buffer that they are reduced out of.
  bool gradients_in_place() const {
    return keeps_weights && residency.gradients == train::Residency::chunk && !narrows();
  }
};

class Engine final : public train::ParamLifecycle, public train::GradSync, public train::ShardStore {
 public:
  /// Allocates shards and buffers of all units of the table, fills the shards, and binds the store's parameters to the
  /// buffers. Submits one task, which stands for the initial shards. Every rank's table must hold the same units.
  Engine(const shard::ParameterTable& table, model::ParameterStore& store, stream::Scheduler& scheduler, Lanes lanes,
         const optim::InitialWeights& initial, Options options);

  /// Nothing is submitted when the unit's buffer holds these weights already.
  void unshard(UnitId) override;
  /// The buffer counts as empty: the next unshard() gathers again, and claims reject a use before it.
  void reshard(UnitId) override;
  stream::Claim weights(UnitId) const override;

  void begin_step(std::int64_t step) override { training_step_ = step; }
  bool trains(UnitId id) const override { return training_step_ >= units_.at(id).frozen_steps; }
  Claims contribute(UnitId) override;
  /// The first reduction after next_weights() replaces the gradient shard, later ones add to it.
  void reduce(UnitId, bool last) override;

  std::vector<optim::ShardState>& shards() override { return shards_; }
  stream::Claim gradient(UnitId) const override;
  stream::Claim slice(UnitId) const override;
  stream::Claim next_weights(UnitId) override;

 private:
  struct Buffer {
    at::Tensor memory;
    stream::BufferId id;
    stream::Content content = 0;  ///< after everything that was submitted; weights only
  };
  struct Unit {
    std::string name;
    std::int64_t frozen_steps = 0;
    at::Tensor weights;  ///< the padded unit: the front part of its buffer
    at::Tensor grads;    ///< undefined where it never trains
    int weight_buffer = 0;
    int grad_buffer = 0;
    std::size_t shard = 0;
    std::vector<at::Tensor> gaps;  ///< of the gradient
    stream::BufferId shard_weights;
    stream::BufferId shard_grad;
    std::int64_t step = 0;           ///< how often the weights were advanced
    std::int64_t serial = 0;         ///< how often the gradient was reduced
    std::int64_t contributions = 0;  ///< to the gradient, since the last reduction
    bool reduced = false;            ///< in this step
  };

  void allocate(const shard::ParameterTable& table);
  void add_shard(const shard::FlatUnit& flat, Unit& unit);
  Unit& at(UnitId id) { return units_.at(id); }
  stream::Claim unreduced(UnitId id) const;
  void zero_unused(UnitId id);
  stream::Claim cast_to_wire(UnitId id, stream::Claim gradient);
  void sum_over_replicas(const Unit& unit, stream::Claim gradient);
  double cost_us(const at::Tensor& whole) const;

  model::ParameterStore& store_;
  stream::Scheduler& scheduler_;
  Lanes lanes_;
  Options options_;
  std::int64_t training_step_ = 0;
  std::vector<Buffer> weights_;
  std::vector<Buffer> grads_;
  std::unordered_map<UnitId, Unit> units_;
  std::vector<optim::ShardState> shards_;
};

}  // namespace orthant::fsdp
