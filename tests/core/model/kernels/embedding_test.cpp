// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/embedding.hpp>

#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <orthant/core/model/kernels/expect.hpp>

#include "tensors.hpp"

namespace orthant::model::kernels::test {
namespace {

TEST(Embedding, ShardsAddUpToTheWhole) {
  for (const auto type : kTypes) {
    for (const std::int64_t dim : {1, 40, 97}) {
      const auto weight = normal(1, {97, dim}, type), dout = normal(2, {33, dim}, type),
                 tokens = integers(3, 0, 97, 33);
      auto exact = weight.to(at::kDouble, false, true).requires_grad_();
      const auto wanted = at::embedding(exact, tokens);
      wanted.backward(dout.to(at::kDouble));
      auto sum = at::zeros({33, dim}, weight.options());
      std::int64_t begin = 0;
      for (const std::int64_t end : {0, 1, 50, 97}) {
        const auto shard = weight.narrow(0, begin, end - begin);
        sum += embedding_forward(shard, tokens, begin);
        auto grad = at::full({end - begin, dim}, std::numeric_limits<double>::quiet_NaN(),
                             weight.options().dtype(compute_type(type)));
        embedding_backward(dout, tokens, begin, grad, Accumulate::overwrite);
        const auto wanted_grad = exact.grad().narrow(0, begin, end - begin);
        EXPECT_LT(relative_error(grad, wanted_grad), type == at::kDouble ? 1e-12 : 1e-5);
        embedding_backward(dout, tokens, begin, grad, Accumulate::add);
        EXPECT_LT(relative_error(grad, 2 * wanted_grad), type == at::kDouble ? 1e-12 : 1e-5);
        begin = end;
      }
      EXPECT_TRUE(same_bits(sum.to(at::kDouble), wanted.detach()));
    }
  }
}

}  // namespace
}  // namespace orthant::model::kernels::test
