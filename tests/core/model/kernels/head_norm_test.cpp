// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/head_norm.hpp>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rsqrt.h>
#include <orthant/core/model/kernels/expect.hpp>

#include "tensors.hpp"

namespace orthant::model::kernels::test {
namespace {

at::Tensor normed(const at::Tensor& columns, const at::Tensor& weight, std::int64_t heads) {
  const auto rows = columns.reshape({columns.size(0), heads, -1});
  return (rows * at::rsqrt(rows.pow(2).mean({2}, true) + 1e-5) * weight).reshape(columns.sizes());
}

TEST(HeadNorm, MatchesAutogradOfItsDefinition) {
  const AttentionShape s{.seq = 9, .batch = 2, .heads = 6, .kv_heads = 2, .head_dim = 4};
  for (const auto type : kTypes) {
    const auto qkv = normal(1, {18, 40}, type), dout = normal(2, {18, 40}, type), query = normal(3, {4}, type),
               key = normal(4, {4}, type);
    auto exact = qkv.to(at::kDouble, false, true).requires_grad_(),
         wq = query.to(at::kDouble, false, true).requires_grad_(),
         wk = key.to(at::kDouble, false, true).requires_grad_();
    const auto wanted = at::cat(
        {normed(exact.narrow(1, 0, 24), wq, 6), normed(exact.narrow(1, 24, 8), wk, 2), exact.narrow(1, 32, 8)}, 1);
    wanted.backward(dout.to(at::kDouble));

    const auto found = head_norm_forward(qkv, {query, key}, s, 1e-5);
    EXPECT_LT(relative_error(found.qkv, wanted.detach()), tolerance(type));
    const at::TensorOptions wide(compute_type(type));
    const auto dq = at::full({4}, 1e30, wide), dk = at::full({4}, 3.0, wide);
    const auto dqkv = head_norm_backward(dout, qkv, {query, key}, found, s, {dq}, {dk, Accumulate::add});
    EXPECT_LT(relative_error(dqkv, exact.grad()), tolerance(type));
    EXPECT_LT(relative_error(dq, wq.grad()), tolerance(type));
    EXPECT_LT(relative_error(dk, wk.grad() + 3), tolerance(type));
  }
}

TEST(HeadNorm, RejectsAnotherShape) {
  const AttentionShape s{.seq = 9, .batch = 2, .heads = 6, .kv_heads = 2, .head_dim = 4};
  const auto weight = normal(3, {4}, at::kFloat);
  EXPECT_THROW(head_norm_forward(normal(1, {18, 36}, at::kFloat), {weight, weight}, s, 1e-5), ShapeError);
}

}  // namespace
}  // namespace orthant::model::kernels::test
