// SPDX-License-Identifier: Apache-2.0
// One matrix used at two places of a layer: its gradient is the sum of both uses, also when W runs later than I.
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <orthant/core/model/dense_factory.hpp>

namespace orthant::model {
namespace {

TEST(SharedMatrix, GetsTheGradientsOfBothPlacesWhetherWeightGradientsWaitOrNot) {
  constexpr int kSize = 6;
  const at::TensorOptions f64(at::kDouble);
  const auto x = at::rand({4, kSize}, f64), weight = at::rand({kSize, kSize}, f64);

  const auto w = weight.clone().set_requires_grad(true);
  const auto plain_x = x.clone().set_requires_grad(true);
  at::relu(plain_x.matmul(w.t())).matmul(w.t()).sum().backward();

  for (const bool split : {false, true}) {
    SCOPED_TRACE(split ? "split" : "whole");
    shard::ParameterTable table;
    ParameterStore store;
    DenseFactory factory({}, {table, store});
    const UnitId unit{1};
    table.add_unit({.id = unit, .name = "layer", .kind = shard::UnitKind::block});
    const auto linear =
        factory.linear({.role = LinearRole::column, .unit = unit, .in = kSize, .parts = {{"shared", kSize}}});
    const auto numel = table.unit(unit).padded_numel(1);
    const auto weights = at::zeros({numel}, f64), grads = at::full({numel}, 7.0, f64);
    weights.narrow(0, 0, kSize * kSize).copy_(weight.view({-1}));
    store.bind(unit, weights, grads);
    store.overwrite_gradients(unit);

    LayerPass pass;
    pass.split = split;
    const auto input = x.clone().set_requires_grad(true);
    linear->forward(at::relu(linear->forward(input, pass)), pass).sum().backward();
    if (split) {
      EXPECT_EQ(pass.deferred.size(), 2u);
      pass.run_deferred();
    }
    EXPECT_TRUE(at::allclose(input.grad(), plain_x.grad(), 1e-13, 1e-13));
    const auto got = grads.narrow(0, 0, kSize * kSize).view({kSize, kSize});
    EXPECT_TRUE(at::allclose(got, w.grad(), 1e-13, 1e-13));
  }
}

}  // namespace
}  // namespace orthant::model
