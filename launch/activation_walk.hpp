// SPDX-License-Identifier: Apache-2.0
// The memory of activations over a training step: a walk through one rank's operations in compute order, which is the
// order in which they take and give memory. A pure function of schedule, layers and shapes.
#pragma once

#include <span>

#include <orthant/core/step/activation_bytes.hpp>
#include <orthant/core/step/llama_program.hpp>
#include <orthant/core/train/stage_layout.hpp>
#include <orthant/pipeline/schedule/schedule.hpp>

namespace orthant::launch {

struct WalkedRank {
  const pipeline::Schedule& schedule;  ///< of training, lowered
  int pp_rank = 0;
  std::span<const train::StageLayout> stages;  ///< as LlamaProgram::layouts()
  LayerId head;
  step::ActivationShape shape;
  step::Checkpoint checkpoint;
};

struct WalkedBytes {
  std::int64_t activations = 0;  ///< most at once, tokens included
  std::int64_t messages = 0;     ///< received ahead, or under way
};

/// Throws  InternalError if the step leaves anything behind.
WalkedBytes walk_activations(const WalkedRank& rank);

}  // namespace orthant::launch
