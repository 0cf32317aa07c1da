// SPDX-License-Identifier: Apache-2.0
// The small run that the tests of sharding start from, and the ways to shard it.
#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>

#include <orthant/tests/parity/parity_check.hpp>

namespace orthant::tests {

inline constexpr Tolerance kFp64{1e-11, 1e-10};

struct Ladder {
  const char* name;
  launch::FsdpConfig fsdp;
};

/// Every rung, with every residency and moment of reduction that it allows.
inline const std::vector<Ladder> kLadder = {
    {"stage 0", {.stage = 0}},
    {"stage 1", {.stage = 1}},
    {"stage 2", {.stage = 2}},
    {"stage 3 layer", {.stage = 3, .residency = "layer"}},
    {"stage 3 layer, reduced last", {.stage = 3, .residency = "layer", .reduce = "last_microbatch"}},
    {"stage 3 chunk", {.stage = 3, .residency = "chunk"}},
    {"stage 3 chunk, reduced each", {.stage = 3, .residency = "chunk", .reduce = "each_microbatch"}},
    {"stage 3 layer, one stream", {.stage = 3, .residency = "layer", .shared_stream = true}},
};

/// Vocabulary 97 divides by nothing, 3 blocks share two buffers unevenly.
inline launch::RunConfig sharding_config(int dp, int microbatches, DType precision = DType::f64) {
  launch::RunConfig run;
  run.model = {.layers = 3, .hidden = 16, .heads = 4, .kv_heads = 4, .head_dim = 4, .ffn = 24, .vocab = 97};
  run.mesh.dp = dp;
  run.train = {
      .steps = 3, .global_batch = dp * microbatches, .micro_batch = 1, .seq_len = 8, .seed = 5, .precision = precision};
  run.lr = {.kind = optim::LrKind::constant, .peak = 1e-2};
  return run;
}

/// The same batch on one rank, which shards nothing.
inline launch::RunConfig alone(launch::RunConfig run) {
  run.mesh = {};
  run.pipeline = {};
  run.fsdp = {.stage = 0};
  return run;
}

}  // namespace orthant::tests
