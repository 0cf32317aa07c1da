// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/cross_entropy.hpp>

#include <cmath>

#include <ATen/ops/empty.h>
#include <orthant/core/model/kernels/composed.hpp>
#include <orthant/core/model/kernels/expect.hpp>
#include <orthant/core/model/kernels/simd.hpp>

namespace orthant::model::kernels {
namespace {

// One logit's softmax, for whole rows and for the target alone: the same code, so the same bits.
template <class C>
Block<C> softmax_block(const Block<C>& logits, const Block<C>& max, const Block<C>& inverse_sum) {
  return exp<C>(logits - max) * inverse_sum;
}

template <class T>
void backward_row(T* logits, std::int64_t vocab, compute_t<T> max, compute_t<T> sum_exp, std::int64_t target,
                  compute_t<T> scale, compute_t<T> z_loss) {
  using C = compute_t<T>;
  const C log_z = max + std::log(sum_exp);
  const Block<C> maxes(max), inverse(C(1) / sum_exp), scales(scale), one(C(1)), factor(C(1) + 2 * z_loss * log_z);
  const bool here = target >= 0 && target < vocab;
  const auto target_logit = here ? load(logits + target, 1) : one;
  for_blocks<C>(vocab, [&](std::int64_t i, std::int64_t n) {
    store<T>(softmax_block<C>(load(logits + i, n), maxes, inverse) * factor * scales, logits + i, n);
  });
  if (here) store<T>((softmax_block<C>(target_logit, maxes, inverse) * factor - one) * scales, logits + target, 1);
}

void expect_rows(const at::Tensor& logits, const at::Tensor& max, const at::Tensor& targets) {
  expect(logits, "logits", logits.scalar_type(), {-1, -1});
  expect(max, "max", compute_type(logits.scalar_type()), {logits.size(0)});
  expect(targets, "targets", at::kLong, {logits.size(0)});
}

}  // namespace

at::Tensor row_max(const at::Tensor& logits) {
  const auto type = logits.scalar_type();
  expect(logits, "logits", type, {-1, -1});
  if (!logits.is_cpu()) return composed::row_max(logits);
  const auto rows = logits.size(0), vocab = logits.size(1);
  auto max = at::empty({rows}, logits.options().dtype(compute_type(type)));
  visit_type(type, [&]<class T>(T) {
    const T* data = logits.const_data_ptr<T>();
    auto* out = max.mutable_data_ptr<compute_t<T>>();
    parallel_rows(rows, vocab, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) out[r] = max_row(data + r * vocab, vocab);
    });
  });
  return max;
}

at::Tensor shard_sums(const at::Tensor& logits, const at::Tensor& max, const at::Tensor& targets,
                      std::int64_t vocab_begin) {
  expect_rows(logits, max, targets);
  if (!logits.is_cpu()) return composed::shard_sums(logits, max, targets, vocab_begin);
  const auto rows = logits.size(0), vocab = logits.size(1);
  auto sums = at::empty({2, rows}, max.options());
  visit_type(logits.scalar_type(), [&]<class T>(T) {
    using C = compute_t<T>;
    const T* data = logits.const_data_ptr<T>();
    const C* max_data = max.const_data_ptr<C>();
    const auto* target_data = targets.const_data_ptr<std::int64_t>();
    C* out = sums.mutable_data_ptr<C>();
    parallel_rows(rows, vocab, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) {
        const T* row = data + r * vocab;
        const Block<C> maxes(max_data[r]);
        out[r] = sum_row<C>(vocab, [&](std::int64_t i, std::int64_t n) { return exp<C>(load(row + i, n) - maxes); });
        const auto target = target_data[r] - vocab_begin;
        const bool here = target_data[r] >= 0 && target >= 0 && target < vocab;
        out[rows + r] = here ? static_cast<C>(row[target]) - max_data[r] : C(0);
      }
    });
  });
  return sums;
}

at::Tensor sum_losses(const at::Tensor& sum_exp, const at::Tensor& target_term, const at::Tensor& targets) {
  const auto type = sum_exp.scalar_type();
  expect(sum_exp, "sum_exp", type, {-1});
  expect(target_term, "target_term", type, {sum_exp.size(0)});
  expect(targets, "targets", at::kLong, {sum_exp.size(0)});
  if (!sum_exp.is_cpu()) return composed::sum_losses(sum_exp, target_term, targets);
  auto loss = at::empty({}, sum_exp.options());
  visit_type(type, [&]<class T>(T) {
    const T* sums = sum_exp.const_data_ptr<T>();
    const T* terms = target_term.const_data_ptr<T>();
    const auto* target_data = targets.const_data_ptr<std::int64_t>();
    double total = 0;
    for (std::int64_t r = 0; r < sum_exp.size(0); ++r) {
      if (target_data[r] >= 0) total += std::log(static_cast<double>(sums[r])) - static_cast<double>(terms[r]);
    }
    *loss.mutable_data_ptr<T>() = static_cast<T>(total);
  });
  return loss;
}

at::Tensor sum_z_losses(const at::Tensor& max, const at::Tensor& sum_exp, const at::Tensor& targets) {
  const auto type = sum_exp.scalar_type();
  expect(sum_exp, "sum_exp", type, {-1});
  expect(max, "max", type, {sum_exp.size(0)});
  expect(targets, "targets", at::kLong, {sum_exp.size(0)});
  if (!sum_exp.is_cpu()) return composed::sum_z_losses(max, sum_exp, targets);
  auto loss = at::empty({}, sum_exp.options());
  visit_type(type, [&]<class T>(T) {
    const T *maxes = max.const_data_ptr<T>(), *sums = sum_exp.const_data_ptr<T>();
    const auto* target_data = targets.const_data_ptr<std::int64_t>();
    double total = 0;
    for (std::int64_t r = 0; r < sum_exp.size(0); ++r) {
      const double log_z = static_cast<double>(maxes[r]) + std::log(static_cast<double>(sums[r]));
      if (target_data[r] >= 0) total += log_z * log_z;
    }
    *loss.mutable_data_ptr<T>() = static_cast<T>(total);
  });
  return loss;
}

void cross_entropy_backward_(const at::Tensor& logits, const at::Tensor& max, const at::Tensor& sum_exp,
                             const at::Tensor& targets, std::int64_t vocab_begin, double scale, double z_loss) {
  expect_rows(logits, max, targets);
  expect(sum_exp, "sum_exp", max.scalar_type(), {logits.size(0)});
  if (!logits.is_cpu())
    return composed::cross_entropy_backward_(logits, max, sum_exp, targets, vocab_begin, scale, z_loss);
  const auto rows = logits.size(0), vocab = logits.size(1);
  visit_type(logits.scalar_type(), [&]<class T>(T) {
    using C = compute_t<T>;
    T* data = logits.mutable_data_ptr<T>();
    const C* max_data = max.const_data_ptr<C>();
    const C* sum_data = sum_exp.const_data_ptr<C>();
    const auto* target_data = targets.const_data_ptr<std::int64_t>();
    parallel_rows(rows, vocab, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) {
        T* row = data + r * vocab;
        if (target_data[r] < 0) {
          std::fill_n(row, vocab, T(0));
        } else {
          backward_row<T>(row, vocab, max_data[r], sum_data[r], target_data[r] - vocab_begin, static_cast<C>(scale),
                          static_cast<C>(z_loss));
        }
      }
    });
  });
}

}  // namespace orthant::model::kernels
