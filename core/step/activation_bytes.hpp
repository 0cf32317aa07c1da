// SPDX-License-Identifier: Apache-2.0
// How much memory a layer's activations take, phase by phase: a pure function of the shapes on this rank. Each function
// goes through a phase as the layer does and takes and gives what the layer takes and gives, so that what is kept is
// exact, and a peak is never under what is measured. Written beside core/model/llama.cpp and tp/parallel_linear.cpp:
// who changes what they keep changes this, and tests/core/step/activation_bytes_test.cpp says so.
#pragma once

#include <cstdint>

#include <orthant/core/base/dtype.hpp>
#include <orthant/core/model/model_config.hpp>
#include <orthant/core/model/recompute.hpp>

namespace orthant::step {

/// Sizes on this rank, in elements.
struct ActivationShape {
  std::int64_t rows = 0;        ///< of the whole sequence: sequence x micro-batch
  std::int64_t local_rows = 0;  ///< a shard of them under sequence parallelism
  std::int64_t seq = 0;
  std::int64_t hidden = 0;
  std::int64_t query = 0;      ///< heads x head dim
  std::int64_t key_value = 0;  ///< key/value heads x head dim
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  bool qk_norm = false;
  bool dropout = false;
  std::int64_t loss_rows = 0;  ///< as ModelConfig's, and not more than `rows`
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  DType precision = DType::f32;
  bool gathers_rows = true;     ///< sequence parallelism, of any degree
  bool keeps_gathered = false;  ///< column-parallel layers keep their input's rows of all ranks

  /// Of what travels between layers and stages: [local rows, hidden].
  std::int64_t activation_bytes() const { return local_rows * hidden * static_cast<std::int64_t>(size_of(precision)); }
};

struct ActivationOptions {
  std::int64_t seq = 0;
  std::int64_t batch = 0;
  DType precision = DType::f32;
  int tp = 1;
  int tp_rank = 0;
  bool sequence_parallel = true;
  bool keep_gathered = false;
};

ActivationShape activation_shape(const model::ModelConfig& model, const ActivationOptions& options);

/// One phase of one layer and micro-batch, against what was live when it began.
struct PhaseBytes {
  std::int64_t peak = 0;   ///< most that was live during the phase
  std::int64_t delta = 0;  ///< live when it has ended
};

/// What comes in from outside (the layer's input; in backward, the output's gradient) is live when a phase begins. The
/// gradient that came in is given up at its end, the input is not: that is for whoever knows who else holds it.
struct LayerBytes {
  PhaseBytes forward;          ///< with its output
  PhaseBytes backward;         ///< whole, with the input's gradient
  PhaseBytes backward_input;   ///< with the input's gradient, and what the weight gradients wait with
  PhaseBytes backward_weight;  ///< after backward_input
  bool keeps_output = false;   ///< from F to the end of backward; else the output is its reader's alone
};

LayerBytes embedding_bytes(const ActivationShape& shape);
LayerBytes block_bytes(const ActivationShape& shape, const model::Recompute& recompute);
LayerBytes head_bytes(const ActivationShape& shape);

}  // namespace orthant::step
