// SPDX-License-Identifier: Apache-2.0
// Peak memory and time of the loss head, forward and backward, with all logits at once and by chunks. Not a test.
//   build/tests/loss_head_bench [VOCAB ROWS HIDDEN CHUNK …]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <orthant/core/comm/local_fabric.hpp>
#include <orthant/core/memory/counting_allocator.hpp>
#include <orthant/tp/sharded_factory.hpp>

namespace {

using namespace orthant;

/// Runs what a body posts at once: one rank has nobody to wait for.
struct Alone final : stream::TaskScope {
  void post(std::function<stream::Work()> start) override { start().wait(std::chrono::seconds(10)); }
  void wait(int) override {}
};

struct Sizes {
  std::int64_t vocab = 32000, rows = 2048, hidden = 512;
};

struct Cost {
  std::int64_t peak_bytes = 0;
  double ms = 0;
};

Cost run(const Sizes& sizes, std::int64_t chunk) {
  auto& allocator = memory::CountingAllocator::install();
  const auto group = comm::LocalFabric(std::make_shared<comm::LocalWorld>(1), 0).make_collectives("tp", std::vector{0});
  shard::ParameterTable table;
  model::ParameterStore store;
  table.add_unit({.id = UnitId{0}, .name = "head"});
  tp::ShardedFactory factory(
      {.hidden = sizes.hidden, .heads = 1, .kv_heads = 1, .vocab = sizes.vocab, .loss_rows = chunk}, {table, store},
      {group.get(), stream::StreamId{0}}, {});
  const auto head = factory.loss_head(UnitId{0}, "lm_head.weight");
  store.bind(UnitId{0}, at::randn({sizes.vocab * sizes.hidden}).mul_(0.02), at::zeros({sizes.vocab * sizes.hidden}));
  const auto x = at::randn({sizes.rows, sizes.hidden}).requires_grad_();
  const auto targets = at::randint(0, sizes.vocab, {sizes.rows}, at::TensorOptions(at::kLong));

  Cost cost;
  std::vector<double> times;
  for (int i = 0; i < 4; ++i) {
    Alone scope;
    model::LayerPass pass;
    pass.scope = &scope;
    x.mutable_grad().reset();
    const auto before = allocator.live_bytes();
    allocator.reset_peak();
    const auto begin = std::chrono::steady_clock::now();
    head->forward(x, targets, pass).backward();
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    cost.peak_bytes = allocator.peak_bytes() - before;
  }
  std::nth_element(times.begin() + 1, times.begin() + 2, times.end());
  cost.ms = times[2];
  return cost;
}

}  // namespace

int main(int count, char** arguments) {
  const auto number = [&](int i, std::int64_t otherwise) { return count > i ? std::atoll(arguments[i]) : otherwise; };
  const Sizes sizes{.vocab = number(1, 32000), .rows = number(2, 2048), .hidden = number(3, 512)};
  std::vector<std::int64_t> chunks{0};
  for (int i = 4; i < count; ++i) chunks.push_back(number(i, 0));
  if (chunks.size() == 1) chunks = {0, 1024, 512, 256, 128};
  std::printf("loss head, fp32, vocabulary %lld, %lld rows, hidden %lld\n", static_cast<long long>(sizes.vocab),
              static_cast<long long>(sizes.rows), static_cast<long long>(sizes.hidden));
  std::printf("  rows at once    peak MiB   of their logits      ms\n");
  for (const auto chunk : chunks) {
    const auto cost = run(sizes, chunk);
    const auto rows = chunk == 0 ? sizes.rows : chunk;
    std::printf("  %12lld  %10.1f  %16.2f  %6.0f\n", static_cast<long long>(rows),
                static_cast<double>(cost.peak_bytes) / (1 << 20),
                static_cast<double>(cost.peak_bytes) / static_cast<double>(rows * sizes.vocab * 4), cost.ms);
  }
}
