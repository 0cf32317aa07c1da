// SPDX-License-Identifier: Apache-2.0
// Which layers each pipeline stage holds: consecutive ones, so that the most expensive stage is as cheap as can be.
#pragma once

#include <vector>

#include <orthant/core/model/model_config.hpp>
#include <orthant/core/step/llama_program.hpp>

namespace orthant::launch {

/// Time of each layer (0 embedding, 1..L blocks, L+1 head) for one micro-batch, forward and backward, in any unit:
/// counted in multiplications. For a run that was not measured.
std::vector<double> estimated_layer_costs(const model::ModelConfig& model, std::int64_t seq_len);

/// Blocks of each stage, by the costs of all layers; the embedding goes to the first stage, the head to the last. Of
/// equal splits, the one with more layers on earlier stages. costs  L + 2 of them; 1 <= stages <= L.
std::vector<int> split_blocks(const std::vector<double>& costs, int stages);

/// Spans of the stages that hold these numbers of blocks.
std::vector<step::StageSpan> spans_of(const std::vector<int>& blocks_per_stage);

}  // namespace orthant::launch
