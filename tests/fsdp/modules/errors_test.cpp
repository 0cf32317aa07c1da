// SPDX-License-Identifier: Apache-2.0
// What goes wrong is said, with names; and what may be done half (a pass that stops, an evaluation) does no harm.
#include <gtest/gtest.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <torch/nn/modules/linear.h>

#include <orthant/core/base/error.hpp>
#include <orthant/tests/fsdp/modules/sharded_run.hpp>

namespace orthant::fsdp {
namespace {

using torch::nn::Linear;

template <class E, class F>
void expect_error(const std::vector<std::string>& words, F&& f) {
  try {
    f();
    ADD_FAILURE() << "no error; wanted one with '" << words.front() << "'";
  } catch (const E& e) {
    for (const auto& word : words) EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
  }
}

/// Two linear layers on one rank.
struct Pair {
  explicit Pair(comm::Fabric& fabric, ModulesOptions options = {})
      : rank(fabric),
        sharded({{"first", first.ptr()}, {"second", second.ptr()}}, rank.scheduler(), rank.lanes(),
                std::move(options)) {}
  at::Tensor forward(const at::Tensor& in) { return sharded.forward(second, sharded.forward(first, in)).sum(); }

  Linear first{4, 4}, second{4, 4};
  DataRank rank;
  ShardedModules sharded;
  at::Tensor x = at::rand({3, 4});
};

void on_one_rank(const std::function<void(comm::Fabric&)>& body) { tests::run_ranks(1, body); }

TEST(Declare, AParameterBelongsToOneUnit) {
  Linear embed(4, 6), head(4, 6);
  head->weight = head->register_parameter("tied", embed->weight);
  shard::ParameterTable table;
  model::ParameterStore store;
  expect_error<ConfigError>({"'head.tied'", "'embed.weight'", "one unit"}, [&] {
    static_cast<void>(declare({{"embed", embed.ptr()}, {"head", head.ptr()}}, table, store));
  });
}

TEST(Declare, AParameterTwiceInAUnitIsOneAndFrozenOnesStayOut) {
  Linear layer(4, 6);
  layer->register_parameter("again", layer->weight);
  layer->bias.requires_grad_(false);
  shard::ParameterTable table;
  model::ParameterStore store;
  const auto units = declare({{"layer", layer.ptr()}}, table, store);
  ASSERT_EQ(units.front().parameters.size(), 1);
  EXPECT_EQ(units.front().parameters.front().name, "layer.weight");
  layer->weight.requires_grad_(false);
  shard::ParameterTable other;
  expect_error<ConfigError>({"'frozen'"}, [&] { static_cast<void>(declare({{"frozen", layer.ptr()}}, other, store)); });
}

TEST(ShardedModules, PrecisionIsNotLostSilently) {
  on_one_rank([](comm::Fabric& fabric) {
    Linear layer(4, 4);
    layer->to(at::kDouble);
    DataRank rank(fabric);
    expect_error<ConfigError>({"'layer.weight'", "f64"}, [&] {
      const ShardedModules sharded({{"layer", layer.ptr()}}, rank.scheduler(), rank.lanes(), {});
    });
  });
}

TEST(DataRank, ShardDegreeDividesTheRanks) {
  on_one_rank([](comm::Fabric& fabric) {
    expect_error<ConfigError>({"shard degree 2"}, [&] { const DataRank rank(fabric, {.shard_degree = 2}); });
  });
}

TEST(ShardedModules, AForwardWithoutBackwardIsNamed) {
  on_one_rank([](comm::Fabric& fabric) {
    Pair pair(fabric);
    const auto loss = pair.forward(pair.x);
    expect_error<InternalError>({"'first'", "NoGradGuard"}, [&] { static_cast<void>(pair.sharded.step({})); });
  });
}

TEST(ShardedModules, ABackwardAfterTheStepIsRejected) {
  on_one_rank([](comm::Fabric& fabric) {
    Pair pair(fabric);
    const auto late = [&] {
      const auto kept = pair.forward(pair.x);
      kept.backward({}, true);
      static_cast<void>(pair.sharded.step({}));
      kept.backward();
    };
    expect_error<InternalError>({"'second'", "after step()"}, late);
  });
}

TEST(ShardedModules, MoreBackwardPassesThanAnnouncedAreRejected) {
  on_one_rank([](comm::Fabric& fabric) {
    Pair pair(fabric);
    pair.forward(pair.x).backward();
    expect_error<InternalError>({"'second'", "microbatches"}, [&] { pair.forward(pair.x).backward(); });
  });
}

TEST(ShardedModules, AParameterUsedOutsideIsFoundInBackward) {
  on_one_rank([](comm::Fabric& fabric) {
    Pair pair(fabric);
    const auto penalty = pair.first->weight.pow(2).sum();
    expect_error<InternalError>({"outside"}, [&] { (pair.forward(pair.x) + penalty).backward(); });
  });
}

TEST(ShardedModules, AGradientThatIsNotFiniteChangesNothing) {
  on_one_rank([](comm::Fabric& fabric) {
    Pair pair(fabric);
    const auto before = pair.sharded.shards().front().master.clone();
    pair.forward(at::full({3, 4}, std::numeric_limits<float>::infinity())).backward();
    expect_error<NonFiniteError>({"gradient norm"}, [&] { static_cast<void>(pair.sharded.step({})); });
    EXPECT_TRUE(at::equal(before, pair.sharded.shards().front().master));
  });
}

/// The gather of the unit after the last that was called is dropped, in two buffers and in one.
TEST(ShardedModules, PassesMayStopAnywhereUnderNoGrad) {
  for (int alternating : {1, 2}) {
    tests::run_ranks(2, [&](comm::Fabric& fabric) {
      const TestModel model(fabric.rank());
      DataRank rank(fabric);
      ShardedModules sharded(model.units(), rank.scheduler(), rank.lanes(),
                             {.engine = {.precision = DType::f64,
                                         .residency = {train::Residency::layer, train::Residency::layer},
                                         .alternating_buffers = alternating}});
      const auto batch = user_model::make_batch(kSizes, 0, 3);
      const auto evaluate = [&](int blocks) {
        const at::NoGradGuard no_grad;
        auto x = sharded.forward(model.embed, batch.tokens_BS);
        for (const auto& block : {model.first, model.second, model.third}) {
          if (blocks-- > 0) x = sharded.forward(block, x, batch.visible_BSS);
        }
        return x;
      };
      const auto whole = evaluate(3);
      for (int blocks : {0, 1, 2, 3, 1}) {
        const auto x = evaluate(blocks);
        EXPECT_EQ(at::equal(x, whole), blocks == 3);
        EXPECT_FALSE(x.requires_grad());
      }
      EXPECT_TRUE(at::equal(evaluate(3), whole));
      model.loss(sharded, batch).backward();
      static_cast<void>(evaluate(1));
      static_cast<void>(sharded.step({.lr = 1e-2}));
      EXPECT_FALSE(at::equal(evaluate(3), whole));
    });
  }
}

TEST(ShardedModules, AUnitThatWasNotCalledHasAZeroGradient) {
  tests::run_ranks(2, [](comm::Fabric& fabric) {
    Pair pair(fabric);
    for (int step = 0; step < 2; ++step) {
      pair.sharded.forward(pair.first, pair.x).sum().backward();
      static_cast<void>(pair.sharded.step({}));
      EXPECT_GT(pair.sharded.shards()[0].grad.abs().sum().item<float>() + fabric.rank(), 0);
      EXPECT_EQ(pair.sharded.shards()[1].grad.abs().sum().item<float>(), 0);
    }
  });
}

}  // namespace
}  // namespace orthant::fsdp
