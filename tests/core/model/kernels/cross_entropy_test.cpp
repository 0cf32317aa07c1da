// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/cross_entropy.hpp>

#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "tensors.hpp"

namespace orthant::model::kernels::test {
namespace {

struct Sharded {
  at::Tensor loss;
  at::Tensor dlogits;
};

/// Loss and gradient over shards that end at `ends`, combined as ranks combine them.
Sharded over_shards(const at::Tensor& logits, const at::Tensor& targets, const std::vector<std::int64_t>& ends,
                    double scale, double z_loss) {
  std::vector<at::Tensor> shards, maxes;
  std::int64_t begin = 0;
  for (const auto end : ends) {
    shards.push_back(logits.narrow(1, begin, end - begin).contiguous());
    maxes.push_back(row_max(shards.back()));
    begin = end;
  }
  const auto max = at::amax(at::stack(maxes), 0);
  at::Tensor sums = at::zeros({2, logits.size(0)}, max.options());
  begin = 0;
  for (const auto& shard : shards) {
    sums += shard_sums(shard, max, targets, begin);
    begin += shard.size(1);
  }
  begin = 0;
  for (const auto& shard : shards) {
    cross_entropy_backward_(shard, max, sums[0], targets, begin, scale, z_loss);
    begin += shard.size(1);
  }
  return {sum_losses(sums[0], sums[1], targets) + z_loss * sum_z_losses(max, sums[0], targets), at::cat(shards, 1)};
}

TEST(CrossEntropy, MatchesAutogradOverAnyShards) {
  const std::vector<std::vector<std::int64_t>> cuts = {{97}, {1, 97}, {0, 40, 97, 97}, {33, 34, 66, 97}};
  for (const auto type : kTypes) {
    for (const auto& ends : cuts) {
      const auto logits = normal(1, {33, 97}, type) * 5, targets = integers(2, 0, 97, 33);
      targets.narrow(0, 7, 3).fill_(-1);
      for (const double z_loss : {0.0, 0.02}) {
        auto exact = logits.to(at::kDouble, false, true).requires_grad_();
        const auto z_losses = at::logsumexp(exact, {1}).pow(2) * (targets >= 0);
        const auto wanted =
            (at::cross_entropy_loss(exact, targets, {}, /*sum*/ 2, /*ignore_index=*/-1) + z_loss * z_losses.sum()) *
            0.5;
        wanted.backward();
        const auto found = over_shards(logits, targets, ends, 0.5, z_loss);
        EXPECT_LT(relative_error(found.loss * 0.5, wanted.detach()),
                  tolerance(type == at::kBFloat16 ? at::kFloat : type));
        EXPECT_LT(relative_error(found.dlogits, exact.grad()), tolerance(type));
      }
    }
  }
}

TEST(CrossEntropy, OneTokenVocabularyHasNoLoss) {
  const auto found =
      over_shards(normal(1, {4, 1}, at::kFloat), at::zeros({4}, at::TensorOptions().dtype(at::kLong)), {1}, 1.0, 0);
  EXPECT_EQ(found.loss.item<float>(), 0.0F);
  EXPECT_TRUE(same_bits(found.dlogits.abs(), at::zeros({4, 1})));
}

TEST(CrossEntropy, EmptyShardIsNeutral) {
  const auto empty = at::empty({3, 0}), targets = integers(1, 0, 5, 3);
  const auto max = row_max(empty);
  EXPECT_TRUE((max == -std::numeric_limits<float>::infinity()).all().item<bool>());
  EXPECT_TRUE(same_bits(shard_sums(empty, at::zeros({3}), targets, 5), at::zeros({2, 3})));
  EXPECT_NO_THROW(cross_entropy_backward_(empty, at::zeros({3}), at::zeros({3}) + 1, targets, 5, 1.0, 0));
}

TEST(CrossEntropy, ANanLogitReachesTheLoss) {
  auto logits = normal(1, {2, 40}, at::kFloat);
  logits[1][37] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(over_shards(logits, integers(2, 0, 40, 2), {40}, 1.0, 0).loss.isnan().item<bool>());
}

}  // namespace
}  // namespace orthant::model::kernels::test
