// SPDX-License-Identifier: Apache-2.0
// Nanoseconds per element of each model kernel in fp32 and bf16: shows that bf16 does not cost more. Not a test.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <orthant/core/model/kernels/attention.hpp>
#include <orthant/core/model/kernels/causal_softmax.hpp>
#include <orthant/core/model/kernels/cross_entropy.hpp>
#include <orthant/core/model/kernels/embedding.hpp>
#include <orthant/core/model/kernels/expect.hpp>
#include <orthant/core/model/kernels/head_layout.hpp>
#include <orthant/core/model/kernels/rms_norm.hpp>
#include <orthant/core/model/kernels/swiglu.hpp>

namespace {

using namespace orthant::model::kernels;

/// Median milliseconds of `work` over 31 runs, after three to warm up.
double median_ms(const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i < 34; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(times.begin() + 3, times.begin() + 18, times.end());
  return times[18];
}

struct Kernel {
  const char* name;
  double elements;
  std::function<std::function<void()>(at::ScalarType)> prepare;
};

// S sequence  B batch  N = S B  D hidden  H, G heads  K head dim  F ffn  V vocabulary
constexpr std::int64_t S = 256, B = 2, N = S * B, D = 512, H = 8, G = 4, K = 64, F = 1408, V = 8192;

at::Tensor random(at::IntArrayRef sizes, at::ScalarType type) { return at::randn(sizes).to(type); }

std::vector<Kernel> kernels() {
  const AttentionShape shape{.seq = S, .batch = B, .heads = H, .kv_heads = G, .head_dim = K};
  const auto tokens = at::randint(0, V, {N}, at::TensorOptions().dtype(at::kLong));
  return {
      {"rms_norm forward", N * D,
       [](auto type) {
         return [x = random({N, D}, type), w = random({D}, type)] { rms_norm_forward(x, w, 1e-5); };
       }},
      {"rms_norm backward", N * D,
       [](auto type) {
         return [x = random({N, D}, type), dy = random({N, D}, type), w = random({D}, type),
                 rstd = random({N}, at::kFloat),
                 dw = random({D}, at::kFloat)] { rms_norm_backward(dy, x, w, rstd, dw, Accumulate::add); };
       }},
      {"swiglu forward", N * F,
       [](auto type) {
         return [x = random({N, 2 * F}, type)] { swiglu_forward(x); };
       }},
      {"swiglu backward", N * F,
       [](auto type) {
         return [x = random({N, 2 * F}, type), dy = random({N, F}, type)] { swiglu_backward(dy, x); };
       }},
      {"split_heads with rotary", N * H * K,
       [=](auto type) {
         return [=, x = random({N, (H + 2 * G) * K}, type),
                 rotary = rotary_table(S, K, 1e4, at::TensorOptions().dtype(type))] {
           split_heads(x, {.first = 0, .heads = H}, shape, &rotary);
         };
       }},
      {"causal softmax", B * H * S * (S + 1) / 2.0,
       [](auto type) {
         return [x = random({B * G, H / G * S, S}, type)] { causal_softmax_(x, 0.125); };
       }},
      {"causal softmax backward", B * H * S * (S + 1) / 2.0,
       [](auto type) {
         return [d = random({B * G, H / G * S, S}, type), p = random({B * G, H / G * S, S}, type)] {
           causal_softmax_backward_(d, p, 1e-3);
         };
       }},
      {"attention forward", N * H * K,
       [=](auto type) {
         return [=, x = random({N, (H + 2 * G) * K}, type),
                 rotary = rotary_table(S, K, 1e4, at::TensorOptions().dtype(type))] {
           attention_forward(x, shape, rotary);
         };
       }},
      {"attention backward", N * H * K,
       [=](auto type) {
         const auto rotary = rotary_table(S, K, 1e4, at::TensorOptions().dtype(type));
         const auto saved = attention_forward(random({N, (H + 2 * G) * K}, type), shape, rotary);
         return [=, dy = random({N, H * K}, type)] { attention_backward(dy, saved, shape, rotary); };
       }},
      {"row max", N * V,
       [](auto type) {
         return [x = random({N, V}, type)] { row_max(x); };
       }},
      {"shard sums", N * V,
       [=](auto type) {
         return [=, x = random({N, V}, type), m = random({N}, at::kFloat)] { shard_sums(x, m, tokens, 0); };
       }},
      {"cross_entropy backward", N * V,
       [=](auto type) {
         return [=, x = random({N, V}, type), m = random({N}, at::kFloat), s = random({N}, at::kFloat).abs() + 1] {
           cross_entropy_backward_(x, m, s, tokens, 0, 1e-3, 0);
         };
       }},
      {"embedding forward", N * D,
       [=](auto type) {
         return [=, w = random({V, D}, type)] { embedding_forward(w, tokens, 0); };
       }},
      {"embedding backward", N * D,
       [=](auto type) {
         return [=, dy = random({N, D}, type), g = random({V, D}, at::kFloat)] {
           embedding_backward(dy, tokens, 0, g, Accumulate::add);
         };
       }},
  };
}

}  // namespace

int main() {
  std::printf("threads %d, %lld tokens, hidden %lld, ffn %lld, vocabulary %lld\n", at::get_num_threads(),
              static_cast<long long>(N), static_cast<long long>(D), static_cast<long long>(F),
              static_cast<long long>(V));
  std::printf("%-26s %12s %12s %8s\n", "kernel", "fp32 ns/el", "bf16 ns/el", "ratio");
  for (const auto& kernel : kernels()) {
    const double fp32 = median_ms(kernel.prepare(at::kFloat)) * 1e6 / kernel.elements;
    const double bf16 = median_ms(kernel.prepare(at::kBFloat16)) * 1e6 / kernel.elements;
    std::printf("%-26s %12.3f %12.3f %8.2f\n", kernel.name, fp32, bf16, bf16 / fp32);
  }
}
