// SPDX-License-Identifier: Apache-2.0
// What every kernel promises, whatever it computes: the same bits at any offset in memory and with any number of
// threads, and what plain ATen operations give (the path of other devices, called here directly).
#include <functional>

#include <orthant/core/model/kernels/causal_softmax.hpp>
#include <orthant/core/model/kernels/composed.hpp>
#include <orthant/core/model/kernels/cross_entropy.hpp>
#include <orthant/core/model/kernels/embedding.hpp>
#include <orthant/core/model/kernels/expect.hpp>
#include <orthant/core/model/kernels/head_layout.hpp>
#include <orthant/core/model/kernels/rms_norm.hpp>
#include <orthant/core/model/kernels/swiglu.hpp>

#include "tensors.hpp"

namespace orthant::model::kernels::test {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Case {
  std::string name;
  std::function<Tensors(std::int64_t rows, at::ScalarType)> inputs;
  std::function<Tensors(const Tensors&)> kernel;
  std::function<Tensors(const Tensors&)> composed;

  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

std::vector<Case> all_cases() {
  constexpr std::int64_t dim = 200, ffn = 133, vocab = 197, vocab_begin = 50;
  const auto shape_of = [](std::int64_t columns, std::int64_t rows) {  // K = 10, H = 4, G = 2
    EXPECT_EQ(columns, 80);
    return AttentionShape{.seq = rows / 2, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 10};
  };
  const auto table = [](const Tensors& in) { return RotaryTable{in[1], in[2]}; };
  const auto vocab_inputs = [](std::int64_t rows, at::ScalarType type) {
    const auto wide = compute_type(type);
    const auto targets = integers(4, 0, 300, rows);
    targets.narrow(0, rows / 2, 2).fill_(-1);
    return Tensors{normal(1, {rows, vocab}, type), normal(2, {rows}, wide) + 4, normal(3, {rows}, wide).abs() + 100,
                   targets};
  };
  const auto norm_inputs = [](std::int64_t rows, at::ScalarType type) {
    const auto wide = compute_type(type);
    return Tensors{normal(1, {rows, dim}, type), normal(2, {rows, dim}, type), normal(3, {dim}, type),
                   normal(4, {rows}, wide).abs(), normal(5, {dim}, wide)};
  };
  const auto softmax_inputs = [](std::int64_t rows, at::ScalarType type) {
    return Tensors{normal(1, {2, 3 * rows, rows}, type),
                   normal(2, {2, 3, rows, rows}, type).abs().tril().view({2, 3 * rows, rows}) / rows};
  };
  return {
      {"rms_norm_forward", norm_inputs,
       [](const Tensors& in) {
         auto r = rms_norm_forward(in[1], in[2], 1e-5);
         return Tensors{r.y, r.rstd};
       },
       [](const Tensors& in) {
         auto r = composed::rms_norm_forward(in[1], in[2], 1e-5);
         return Tensors{r.y, r.rstd};
       }},
      {"rms_norm_backward_add", norm_inputs,
       [](const Tensors& in) {
         return Tensors{rms_norm_backward(in[0], in[1], in[2], in[3], in[4], Accumulate::add), in[4]};
       },
       [](const Tensors& in) {
         return Tensors{composed::rms_norm_backward(in[0], in[1], in[2], in[3], in[4], Accumulate::add), in[4]};
       }},
      {"rms_norm_backward_overwrite", norm_inputs,
       [](const Tensors& in) {
         return Tensors{rms_norm_backward(in[0], in[1], in[2], in[3], in[4], Accumulate::overwrite), in[4]};
       },
       [](const Tensors& in) {
         return Tensors{composed::rms_norm_backward(in[0], in[1], in[2], in[3], in[4], Accumulate::overwrite), in[4]};
       }},
      {"swiglu_forward",
       [](auto rows, auto type) {
         return Tensors{normal(1, {rows, 2 * ffn}, type)};
       },
       [](const Tensors& in) { return Tensors{swiglu_forward(in[0])}; },
       [](const Tensors& in) { return Tensors{composed::swiglu_forward(in[0])}; }},
      {"swiglu_backward",
       [](auto rows, auto type) {
         return Tensors{normal(1, {rows, ffn}, type), normal(2, {rows, 2 * ffn}, type)};
       },
       [](const Tensors& in) { return Tensors{swiglu_backward(in[0], in[1])}; },
       [](const Tensors& in) { return Tensors{composed::swiglu_backward(in[0], in[1])}; }},
      {"split_heads",
       [](auto rows, auto type) {
         const auto rotary = rotary_table(rows, 10, 100.0, at::TensorOptions().dtype(type));
         return Tensors{normal(1, {rows, 80}, type), rotary.cos, rotary.sin};
       },
       [=](const Tensors& in) {
         const auto rotary = table(in);
         const auto shape = shape_of(in[0].size(1), in[0].size(0));
         return Tensors{split_heads(in[0], {.first = 0, .heads = 4}, shape, &rotary),
                        split_heads(in[0], {.first = 60, .heads = 2}, shape, nullptr)};
       },
       [=](const Tensors& in) {
         const auto rotary = table(in);
         const auto shape = shape_of(in[0].size(1), in[0].size(0));
         return Tensors{composed::split_heads(in[0], {.first = 0, .heads = 4}, shape, &rotary),
                        composed::split_heads(in[0], {.first = 60, .heads = 2}, shape, nullptr)};
       }},
      {"merge_heads",
       [](auto rows, auto type) {
         const auto rotary = rotary_table(rows, 10, 100.0, at::TensorOptions().dtype(type));
         return Tensors{normal(1, {4, rows, 10}, type), rotary.cos, rotary.sin, normal(2, {rows, 80}, type)};
       },
       [=](const Tensors& in) {
         const auto rotary = table(in);
         merge_heads(in[0], {.first = 10, .heads = 4}, shape_of(80, in[3].size(0)), &rotary, in[3]);
         return Tensors{in[3]};
       },
       [=](const Tensors& in) {
         const auto rotary = table(in);
         composed::merge_heads(in[0], {.first = 10, .heads = 4}, shape_of(80, in[3].size(0)), &rotary, in[3]);
         return Tensors{in[3]};
       }},
      {"causal_softmax", softmax_inputs,
       [](const Tensors& in) {
         causal_softmax_(in[0], 0.7);
         return Tensors{in[0]};
       },
       [](const Tensors& in) {
         composed::causal_softmax_(in[0], 0.7);
         return Tensors{in[0]};
       }},
      {"causal_softmax_backward", softmax_inputs,
       [](const Tensors& in) {
         causal_softmax_backward_(in[0], in[1], 0.7);
         return Tensors{in[0]};
       },
       [](const Tensors& in) {
         composed::causal_softmax_backward_(in[0], in[1], 0.7);
         return Tensors{in[0]};
       }},
      {"row_max", vocab_inputs, [](const Tensors& in) { return Tensors{row_max(in[0])}; },
       [](const Tensors& in) { return Tensors{composed::row_max(in[0])}; }},
      {"shard_sums", vocab_inputs,
       [](const Tensors& in) { return Tensors{shard_sums(in[0], in[1], in[3], vocab_begin)}; },
       [](const Tensors& in) { return Tensors{composed::shard_sums(in[0], in[1], in[3], vocab_begin)}; }},
      {"sum_losses", vocab_inputs, [](const Tensors& in) { return Tensors{sum_losses(in[2], in[1], in[3])}; },
       [](const Tensors& in) { return Tensors{composed::sum_losses(in[2], in[1], in[3])}; }},
      {"cross_entropy_backward", vocab_inputs,
       [](const Tensors& in) {
         cross_entropy_backward_(in[0], in[1], in[2], in[3], vocab_begin, 0.25, 1e-3);
         return Tensors{in[0]};
       },
       [](const Tensors& in) {
         composed::cross_entropy_backward_(in[0], in[1], in[2], in[3], vocab_begin, 0.25, 1e-3);
         return Tensors{in[0]};
       }},
      {"embedding_forward",
       [](auto rows, auto type) {
         return Tensors{normal(1, {7, dim}, type), integers(2, 0, 12, rows)};
       },
       [](const Tensors& in) { return Tensors{embedding_forward(in[0], in[1], 2)}; },
       [](const Tensors& in) { return Tensors{composed::embedding_forward(in[0], in[1], 2)}; }},
      {"embedding_backward",
       [](auto rows, auto type) {
         return Tensors{normal(1, {rows, dim}, type), integers(2, 0, 12, rows),
                        normal(3, {7, dim}, compute_type(type))};
       },
       [](const Tensors& in) {
         embedding_backward(in[0], in[1], 2, in[2], Accumulate::add);
         return Tensors{in[2]};
       },
       [](const Tensors& in) {
         composed::embedding_backward(in[0], in[1], 2, in[2], Accumulate::add);
         return Tensors{in[2]};
       }},
  };
}

Tensors placed(const Tensors& tensors, std::int64_t offset) {
  Tensors copies;
  for (const auto& t : tensors) copies.push_back(at_offset(t, offset));
  return copies;
}

class KernelProperties : public testing::TestWithParam<Case> {};

TEST_P(KernelProperties, SameBitsAtAnyOffset) {
  for (const auto type : kTypes) {
    const auto inputs = GetParam().inputs(6, type);
    const auto wanted = GetParam().kernel(placed(inputs, 0));
    for (std::int64_t offset = 1; offset < 64; ++offset) {
      const auto found = GetParam().kernel(placed(inputs, offset));
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        ASSERT_TRUE(same_bits(found[i], wanted[i]))
            << "output " << i << " at offset " << offset << " in " << at::toString(type);
      }
    }
  }
}

TEST_P(KernelProperties, SameBitsWithOneAndTwoThreads) {
  for (const auto type : kTypes) {
    const auto inputs = GetParam().inputs(330, type);
    const auto run = [&](int threads) {
      const Threads scope(threads);
      return GetParam().kernel(placed(inputs, 0));
    };
    const auto one = run(1), two = run(2);
    for (std::size_t i = 0; i < one.size(); ++i)
      EXPECT_TRUE(same_bits(one[i], two[i])) << at::toString(type) << " output " << i;
  }
}

TEST_P(KernelProperties, AgreeWithComposedOperations) {
  for (const auto type : kTypes) {
    const auto inputs = GetParam().inputs(34, type);
    const auto found = GetParam().kernel(placed(inputs, 0)), wanted = GetParam().composed(placed(inputs, 0));
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_EQ(found[i].scalar_type(), wanted[i].scalar_type());
      EXPECT_LT(relative_error(found[i], wanted[i]), tolerance(type) / 5) << at::toString(type) << " output " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, KernelProperties, testing::ValuesIn(all_cases()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace orthant::model::kernels::test
