// SPDX-License-Identifier: Apache-2.0
// LlamaProgram: this rank's layers as a StageProgram. Layer-stepped autograd: each layer's forward runs on a detached
// input under a small graph of its own, and its backward is an explicit call. So all weight gradients of a layer are
// written before anything of the previous layer starts, without hooks (what YaFSDP's gate guarantees).
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <orthant/core/model/llama.hpp>
#include <orthant/core/train/stage_layout.hpp>
#include <orthant/core/train/stage_program.hpp>

namespace orthant::step {

/// Which part of the model a rank holds, and in which precision it computes.
struct StageSpec {
  model::ModelConfig model;
  model::RowShape rows;  ///< of one micro-batch, whole sequence
  StageId stage;
  LayerId first;  ///< layer ids of the stage, both included
  LayerId last;
  int microbatches = 1;
  DType precision = DType::f32;
  bool counts_replicated = true;  ///< this rank owns what its tensor-parallel peers hold too (norms)
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
  LlamaProgram(const StageSpec& spec, model::LayerFactory& factory, model::Parameters parameters, BatchReader reader);

  void run(const Step& step, stream::TaskScope& scope) override;
  Outline outline(Phase phase, LayerId layer) const override;
  train::Held make_input(train::Payload payload, MicrobatchId) override;
  train::Held take_output(train::Payload payload, MicrobatchId) override;

  /// Body of the first compute task of a step: what the next micro-batches are; the loss starts from zero.
  void begin(const StepInput& input);

  /// Sums since begin(); both 0 on stages without the head.
  double loss_sum() const { return loss_sum_; }
  std::int64_t tokens() const { return tokens_; }

  const train::StageLayout& layout() const { return layout_; }

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

  bool is_embedding(LayerId layer) const { return layer.value == 0; }
  bool is_head(LayerId layer) const { return layer.value == spec_.model.head_layer(); }
  LayerState& state(const Step& step);
  void read_batch(Flow& flow, MicrobatchId microbatch);
  void forward(const Step& step, LayerState& state, Flow& flow);
  void backward_input(const Step& step, LayerState& state, Flow& flow);
  void backward_weight(const Step& step, LayerState& state, Flow& flow);

  StageSpec spec_;
  std::int64_t local_rows_;
  model::ParameterStore& store_;
  BatchReader reader_;
  train::StageLayout layout_;
  model::kernels::RotaryTable rotary_;
  std::unique_ptr<model::Embedding> embedding_;
  std::vector<model::Block> blocks_;
  std::optional<model::Head> head_;
  std::vector<LayerState> states_;
  std::vector<Flow> flows_;
  StepInput input_;
  double loss_sum_ = 0;
  std::int64_t tokens_ = 0;
};

}  // namespace orthant::step
