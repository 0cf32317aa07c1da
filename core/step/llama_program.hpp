// SPDX-License-Identifier: Apache-2.0
// LlamaProgram: the layers of this rank's stages as a StageProgram. Layer-stepped autograd: each layer's forward runs
// on a detached input under a small graph of its own, and its backward is an explicit call. So all weight gradients of
// a layer are written before anything of the previous layer starts, without hooks (what YaFSDP's gate guarantees).
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include <orthant/core/model/llama.hpp>
#include <orthant/core/step/cost_recorder.hpp>
#include <orthant/core/train/stage_layout.hpp>
#include <orthant/core/train/stage_program.hpp>

namespace orthant::step {

/// One pipeline stage: layer ids, both included.
struct StageSpan {
  StageId stage;
  LayerId first;
  LayerId last;
};

/// What the optimizer is told about a unit.
struct UnitPolicy {
  std::int64_t frozen_steps = 0;  ///< as FlatUnit's
  double lr_scale = 1.0;
  std::optional<double> weight_decay = {};  ///< none: the optimizer's, for matrices
};
/// By kind and, of blocks and their norms, the block's number from 0 (-1 of others).
using UnitPolicies = std::function<UnitPolicy(shard::UnitKind kind, std::int64_t block)>;

/// Activation checkpointing on a rank.
struct Checkpoint {
  model::Recompute recompute = {};               ///< of each of the blocks that it holds for
  int blocks = std::numeric_limits<int>::max();  ///< the rank's first ones, in the order of layers
};

/// Which part of the model a rank holds, and in which precision it computes.
struct RankSpec {
  model::ModelConfig model;
  model::RowShape rows;  ///< of one micro-batch, whole sequence
  std::vector<StageSpan> stages;
  int microbatches = 1;
  DType precision = DType::f32;
  /// How this rank's weights relate to those of other pipeline ranks.
  bool tied_apart = false;      ///< embeddings are tied, and their two ends lie on different ranks
  bool mirrored = false;        ///< DualPipe: another rank holds a copy of everything here
  bool counts_mirrored = true;  ///< of the two copies this one is counted in the norm and written to files
  /// Dropout: the run's seed, and the number of a micro-batch's first sample among the step's.
  std::uint64_t seed = 0;
  std::function<std::int64_t(MicrobatchId)> first_sample = [](MicrobatchId) { return std::int64_t{0}; };
  UnitPolicies policies = [](shard::UnitKind, std::int64_t) { return UnitPolicy{}; };
  Checkpoint checkpoint = {};
};

/// What the micro-batches of a step are.
struct StepInput {
  std::int64_t step = 0;
  bool training = true;  ///< false: validation; no graph, no gradient
};

/// Fills inputs and targets [T] of one micro-batch; target -1 is ignored.
using BatchReader = std::function<void(const StepInput&, MicrobatchId, std::int64_t* inputs, std::int64_t* targets)>;

class LlamaProgram : public train::StageProgram {
 public:
  /// Declares units and parameters; allocates no weights.
  LlamaProgram(const RankSpec& spec, model::LayerFactory& factory, model::Parameters parameters, BatchReader reader);

  void run(const Step& step, stream::TaskScope& scope) override;
  Outline outline(Phase phase, LayerId layer) const override;
  train::Held make_input(train::Payload payload, StageId, MicrobatchId) override;
  train::Held take_output(train::Payload payload, StageId, MicrobatchId) override;
  void hand_over(train::Payload payload, StageId from, StageId to, MicrobatchId) override;

  /// Body of the first compute task of a step: what the next micro-batches are; the loss starts from zero.
  void begin(const StepInput& input);

  /// Since begin(); 0 on ranks without the head.
  double loss_sum() const { return loss_sum_; }
  /// Targets that count, in all micro-batches of the step that begin() named: the data's, on any stage.
  std::int64_t count_tokens();

  /// How long layers take in training. Only while nothing runs.
  const CostRecorder& costs() const { return costs_; }

  /// Of this rank's stages, in the order of their layers.
  std::span<const train::StageLayout> layouts() const { return layouts_; }

 private:
  struct LayerState {  ///< one micro-batch in one layer, from F to B or W
    model::LayerPass pass;
    at::Tensor input;
    at::Tensor output;
    at::Tensor output_grad;
  };
  struct Flow {  ///< one micro-batch between layers
    at::Tensor inputs;
    at::Tensor targets;
    at::Tensor activation;
    at::Tensor gradient;
  };

  /// What a layer of this rank is, apart from micro-batches.
  struct Layer {
    StageSpan span;
    train::LayerUnits units;
    std::optional<model::Block> block;  ///< unless it is the embedding or the head
    model::Recompute recompute;
    std::vector<LayerState> states;  ///< per micro-batch
  };

  bool is_embedding(LayerId layer) const { return layer.value == 0; }
  bool is_head(LayerId layer) const { return layer.value == spec_.model.head_layer(); }
  UnitId norms_of(LayerId layer) const;
  void declare_norms(const StageSpan& span, shard::ParameterTable& table);
  void declare_layer(const StageSpan& span, LayerId layer, model::LayerFactory& factory, model::Parameters parameters);
  Layer& at(LayerId layer) { return layers_.at(layer.value); }
  Flow& flow(StageId stage, MicrobatchId microbatch);
  at::Tensor& place(train::Payload payload, StageId stage, MicrobatchId microbatch);
  void run_phase(const Step& step, LayerState& state, Flow& flow);
  void read_batch(Flow& flow, MicrobatchId microbatch);
  void forward(const Step& step, LayerState& state, Flow& flow);
  void make_again(const Step& step, LayerState& state);
  void backward_input(const Step& step, LayerState& state, Flow& flow);
  void backward_weight(const Step& step, LayerState& state);

  RankSpec spec_;
  std::int64_t local_rows_;
  std::int64_t first_row_;  ///< of the local ones, in the whole sequence
  model::ParameterStore& store_;
  BatchReader reader_;
  std::vector<train::StageLayout> layouts_;
  model::kernels::RotaryTable rotary_;
  std::unique_ptr<model::Embedding> embedding_;
  std::map<int, Layer> layers_;
  int blocks_ = 0;  ///< of this rank
  std::optional<model::Head> head_;
  std::map<StageId, std::vector<Flow>> flows_;  ///< per micro-batch
  StepInput input_;
  double loss_sum_ = 0;
  CostRecorder costs_;
};

}  // namespace orthant::step
