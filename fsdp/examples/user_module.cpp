// SPDX-License-Identifier: Apache-2.0
// Trains a model that knows nothing of Orthant, sharded over ranks that are threads:  fsdp_user_module_example [RANKS]
// The lines between the rules are those of fsdp/modules/README.md.
#include <cstdlib>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <orthant/core/comm/local_fabric.hpp>
#include <orthant/fsdp/examples/user_model.hpp>
#include <orthant/fsdp/modules/data_rank.hpp>
#include <orthant/fsdp/modules/sharded_modules.hpp>

namespace {

using namespace orthant;

constexpr user_model::Sizes kSizes;
constexpr int kSteps = 60, kSamples = 12;  // a step, a rank

user_model::Batch next_batch(const comm::Fabric& fabric, int step) {
  const int begin = (step * fabric.size() + fabric.rank()) * kSamples;
  return user_model::make_batch(kSizes, begin, begin + kSamples);
}

void print(const comm::Fabric& fabric, int step, const at::Tensor& loss, const fsdp::StepReport& report) {
  if (fabric.rank() != 0 || step % 10 != 9) return;
  const auto tokens = static_cast<double>(kSamples * kSizes.sequence);
  fmt::print("step {:3}  loss {:.4f}  gradient norm {:.4f}\n", step + 1, loss.item<double>() / tokens,
             report.grad_norm);
}

void train_model(comm::Fabric& fabric) {
  const user_model::Model m(kSizes);
  const auto tokens = static_cast<double>(fabric.size() * kSamples * kSizes.sequence);
  // ---
  fsdp::DataRank rank(fabric);
  fsdp::ShardedModules model({{"embed", m.embed}, {"first", m.first}, {"second", m.second}, {"head", m.head}},
                             rank.scheduler(), rank.lanes(), {.grad_clip = 1.0});
  for (int step = 0; step < kSteps; ++step) {
    const auto [text, mask, labels] = next_batch(fabric, step);
    auto x = model.forward(m.embed, text);
    for (const auto& block : {m.first, m.second}) x = model.forward(block, x, mask);
    const auto loss = user_model::loss_sum(model.forward(m.head, x), labels);
    loss.backward();
    print(fabric, step, loss, model.step({.divide_by = tokens, .lr = 1e-2}));
  }
  // ---
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const auto world = std::make_shared<comm::LocalWorld>(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([world, rank] {
      try {
        comm::LocalFabric fabric(world, rank);
        train_model(fabric);
      } catch (const std::exception& e) {
        fmt::print(stderr, "rank {}: {}\n", rank, e.what());
        std::exit(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}
