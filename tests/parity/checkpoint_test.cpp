// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing changes memory and nothing else: every mode gives the bits of "none", on one rank and with
// tensor parallelism and a split backward on a pipeline.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ops/equal.h>

#include <orthant/tests/parity/sharding_config.hpp>

namespace orthant::tests {
namespace {

struct Mode {
  const char* name;
  std::vector<std::string> ops = {};
};

void expect_same_bits(const Tensors& found, const Tensors& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) EXPECT_TRUE(at::equal(found.at(name), tensor)) << name;
}

TEST(Checkpointing, EveryModeGivesTheBitsOfNone) {
  for (const DType precision : {DType::f32, DType::bf16}) {
    for (const launch::MeshConfig& mesh : {launch::MeshConfig{}, {.pp = 2, .tp = 2}, {.dp = 2, .tp = 2}}) {
      auto run = sharding_config(mesh.dp, 4, precision);
      run.mesh = mesh;
      run.pipeline.schedule = "zb_h1";
      run.sequence_parallel = mesh.pp > 1;
      if (mesh.pp > 1) {  // every step clips, so every warm-up is done again
        run.pipeline.post_validation = "on";
        run.train.grad_clip = 1e-3;
      }
      const auto wanted = run_trajectory(run);
      for (const Mode& mode : {Mode{"full"},
                               {"first"},
                               {"selected", {"attention"}},
                               {"selected", {"mlp"}},
                               {"selected", {"mlp", "attention"}}}) {
        SCOPED_TRACE(fmt::format("{} pp{} dp{} tp{} {} {}", name_of(precision), mesh.pp, mesh.dp, mesh.tp, mode.name,
                                 mode.ops.size()));
        run.train.checkpoint_activations = mode.name;
        run.train.checkpoint_ops = mode.ops;
        const auto found = run_trajectory(run);
        EXPECT_EQ(found.losses, wanted.losses);
        EXPECT_EQ(found.norms, wanted.norms);
        expect_same_bits(found.gradients, wanted.gradients);
        expect_same_bits(found.final, wanted.final);
      }
    }
  }
}

}  // namespace
}  // namespace orthant::tests
