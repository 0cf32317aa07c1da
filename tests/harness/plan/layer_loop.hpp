// SPDX-License-Identifier: Apache-2.0
// A model made of numbers: the tasks of training steps over an embedding, blocks and a head with norms apart, submitted
// through the seams that dp and fsdp implement. Weights and gradients are small integers, so every sum is exact in fp32
// and bf16.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <orthant/core/model/parameter.hpp>
#include <orthant/core/optim/make_shard.hpp>
#include <orthant/core/stream/scheduler.hpp>
#include <orthant/core/train/param_lifecycle.hpp>
#include <orthant/core/train/shard_store.hpp>
#include <orthant/core/train/stage_layout.hpp>

namespace orthant::tests {

/// The units and parameters of the number model. Blocks have two matrices of `width` x 3 and `width` elements.
struct NumberModel {
  NumberModel(int blocks, std::int64_t width);

  struct Layer {
    UnitId main;
    std::vector<model::Parameter*> parameters;  ///< of the main unit
    model::Parameter* norm;                     ///< null for the embedding
  };
  shard::ParameterTable table;
  model::ParameterStore store;
  UnitId norms;
  std::vector<Layer> layers;
};

/// Weight of element `index` of a unit before the first step; gaps and padding are zero.
double initial_weight(const shard::FlatUnit& unit, std::int64_t index);
optim::InitialWeights number_weights();

/// What a rank's layer adds to an element's gradient in one micro-batch.
double contribution(UnitId unit, std::int64_t index, int rank, int step, int microbatch);
/// Whether a parameter covers the element.
bool is_used(const shard::FlatUnit& unit, std::int64_t index);

struct LoopParts {
  NumberModel& model;
  stream::Scheduler& scheduler;
  stream::StreamId compute;
  train::ParamLifecycle& lifecycle;
  train::GradSync& sync;
  train::ShardStore& store;
  train::Residency gradients = train::Residency::chunk;
  bool reshards = false;  ///< gives each layer's weights up right after their use
  int rank = 0;
  int ranks = 1;
  /// Parameters that get no gradient.
  std::function<bool(const model::Parameter&)> unused = [](const model::Parameter&) { return false; };
  std::function<double()> compute_us = [] { return 1.0; };  ///< predicted duration of the next F, B or STEP
};

class LayerLoop {
 public:
  explicit LayerLoop(LoopParts parts) : parts_(std::move(parts)) {}
  /// Forward and backward of every micro-batch, reductions, and an optimizer that adds 1 to every used weight. Bodies
  /// check that weights are whole and current, and that reduced gradients equal the serial sum; they throw
  /// std::runtime_error if not.
  void step(int microbatches);
  /// Forward alone.
  void validate();

 private:
  void forward(int layer, int microbatch);
  void backward(int layer, int microbatch);
  void optimizer_step(optim::ShardState& shard, int microbatches);
  stream::Task compute_task(const std::string& name);
  void read_weights(stream::Task& task, const NumberModel::Layer& layer);
  bool has_gradient(const shard::FlatUnit& unit, std::int64_t index) const;
  void check_weights(const model::Parameter& parameter, int step) const;

  LoopParts parts_;
  int step_ = 0;
};

}  // namespace orthant::tests
