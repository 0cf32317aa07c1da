// SPDX-License-Identifier: Apache-2.0
// What runs beside what: as data (segments), on the virtual clock, and in the bodies, which must do what they declare.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/local_fabric.hpp>
#include <orthant/core/stream/cpu_scheduler.hpp>
#include <orthant/core/stream/virtual_clock.hpp>
#include <orthant/tests/tp/tasks.hpp>
#include <orthant/tp/sharded_factory.hpp>

namespace orthant::tp::tests {
namespace {

using model::Declaration;
using model::LayerPass;
using stream::Segment;
using Kind = Segment::Kind;

constexpr UnitId kOnlyUnit{0};
constexpr std::int64_t kOverlapRows = 64;

/// One rank of `degree` with a column-parallel layer; the other ranks exist only as a number.
struct OneRank {
  OneRank(stream::Scheduler& scheduler, int degree, const TpOptions& options)
      : group(comm::LocalFabric(std::make_shared<comm::LocalWorld>(degree), 0).make_collectives("tp", ranks(degree))),
        tasks(scheduler, *group) {
    table.add_unit({.id = kOnlyUnit, .name = "unit", .regions = {}, .parameters = {}});
    ShardedFactory factory({.hidden = 32, .heads = 8, .kv_heads = 8, .vocab = 97}, {table, store}, tasks.lane(),
                           options);
    linear = factory.linear(
        {.role = model::LinearRole::column, .unit = kOnlyUnit, .in = 32, .parts = {{"up_proj.weight", 64}}});
  }

  static std::vector<int> ranks(int degree) {
    std::vector<int> all;
    for (int rank = 0; rank < degree; ++rank) all.push_back(rank);
    return all;
  }

  Declaration declare(Phase phase) const {
    Declaration declared;
    linear->declare(phase, kOverlapRows, declared);
    return declared;
  }

  shard::ParameterTable table;
  model::ParameterStore store;
  std::unique_ptr<comm::Collectives> group;
  Tasks tasks;
  std::unique_ptr<model::Linear> linear;
};

/// Length of a column-parallel backward when the collective of its input gradient takes `delay_us` longer. Products
/// take 100 us, collectives 30.
double backward_us(const TpOptions& options, double delay_us) {
  stream::VirtualClock clock([&](const stream::Task& task, const Segment& segment) {
    if (segment.kind == Kind::compute) return 100.0;
    const bool is_sum = !task.nested[segment.nested].name.starts_with("AG");
    return 30.0 + (is_sum ? delay_us : 0.0);
  });
  OneRank rank(clock, 4, options);
  LayerPass unused;
  rank.tasks.run("B", unused, rank.declare(Phase::backward), [] {});
  return clock.makespan_us();
}

TEST(ColumnParallelBackward, HidesTheInputGradientsCollectiveBehindTheWeightGradient) {
  for (bool sequence_parallel : {false, true}) {
    SCOPED_TRACE(sequence_parallel);
    const TpOptions options{.sequence_parallel = sequence_parallel};
    EXPECT_EQ(backward_us(options, 0), 200);  // the two products and nothing else
    EXPECT_EQ(backward_us(options, 70), 200);
    EXPECT_EQ(backward_us(options, 90), 220);  // 120 us behind a product of 100
  }
}

TEST(ColumnParallelBackward, PaysForEveryDelayWithoutOverlap) {
  for (bool sequence_parallel : {false, true}) {
    SCOPED_TRACE(sequence_parallel);
    const TpOptions options{.sequence_parallel = sequence_parallel, .overlap = false};
    const double undelayed_us = backward_us(options, 0);
    EXPECT_EQ(undelayed_us, sequence_parallel ? 260 : 230);
    EXPECT_EQ(backward_us(options, 70), undelayed_us + 70);
  }
}

TEST(ColumnParallelBackward, DeclaresTheCollectiveRoundTheWeightGradient) {
  stream::VirtualClock clock;
  const OneRank rank(clock, 4, {});
  const auto declared = rank.declare(Phase::backward);
  std::vector<std::pair<Kind, int>> steps;
  for (const auto& segment : declared.segments) steps.emplace_back(segment.kind, segment.nested);
  ASSERT_EQ(declared.nested.size(), 2U);
  EXPECT_EQ(declared.nested[0].name, "AG up_proj");
  EXPECT_EQ(declared.nested[1].name, "RS up_proj");
  const std::vector<std::pair<Kind, int>> wanted = {{Kind::post, 0}, {Kind::compute, -1}, {Kind::post, 1},
                                                    {Kind::wait, 0}, {Kind::compute, -1}, {Kind::wait, 1}};
  EXPECT_EQ(steps, wanted);
}

TEST(ColumnParallelBackward, WritesTheWeightGradientBetweenPostAndWait) {
  /// Looks at the weight gradient at every post and wait.
  struct Looking final : stream::TaskScope {
    explicit Looking(const at::Tensor& gradient) : grad(gradient) {}
    void post(std::function<stream::Work()> start) override {
      start().wait(std::chrono::seconds(1));
      written_at_post.push_back(!grad.isnan().any().item<bool>());
    }
    void wait(int index) override {
      waited.push_back(index);
      written_at_wait.push_back(!grad.isnan().any().item<bool>());
    }
    const at::Tensor& grad;
    std::vector<int> waited;
    std::vector<bool> written_at_post, written_at_wait;
  };
  stream::VirtualClock unused;
  OneRank rank(unused, 1, {});
  const auto grads = at::full({64 * 32}, std::numeric_limits<double>::quiet_NaN(), at::kFloat);
  rank.store.bind(kOnlyUnit, at::ones({64 * 32}, at::kFloat), grads);

  Looking scope(grads);
  LayerPass pass;
  pass.scope = &scope;
  auto output = rank.linear->forward(at::randn({kOverlapRows, 32}, at::kFloat).requires_grad_(), pass);
  scope.waited.clear();
  scope.written_at_post.clear();
  scope.written_at_wait.clear();
  pass.posted = 0;
  output.backward(at::ones({kOverlapRows, 64}, at::kFloat));
  EXPECT_EQ(scope.written_at_post, (std::vector<bool>{false, false}));
  EXPECT_EQ(scope.waited, (std::vector<int>{0, 1}));
  EXPECT_EQ(scope.written_at_wait, (std::vector<bool>{false, true}));
}

TEST(ShardedLayers, FailWhenTheyPostInAnotherOrderThanDeclared) {
  stream::CpuScheduler scheduler;
  OneRank rank(scheduler, 1, {});
  rank.store.bind(kOnlyUnit, at::ones({64 * 32}, at::kFloat), at::ones({64 * 32}, at::kFloat));
  LayerPass pass;
  at::Tensor output;
  rank.tasks.run("F", pass, rank.declare(Phase::forward), [&] {
    output = rank.linear->forward(at::randn({kOverlapRows, 32}, at::kFloat).requires_grad_(), pass);
  });
  Declaration serial;  // what the layer would do without overlap
  stream::VirtualClock unused;
  OneRank(unused, 1, {.overlap = false}).linear->declare(Phase::backward, kOverlapRows, serial);
  EXPECT_THROW(rank.tasks.run("B", pass, serial,
                              [&] {
                                output.backward(at::ones({kOverlapRows, 64}, at::kFloat));
                              }),
               InternalError);
}

TEST(ShardedLossHead, MakesNoGraphWhenItOnlyEvaluates) {
  stream::CpuScheduler scheduler;
  OneRank rank(scheduler, 1, {});
  const UnitId head_unit{1};
  rank.table.add_unit({.id = head_unit, .name = "head", .regions = {}, .parameters = {}});
  ShardedFactory factory({.hidden = 32, .heads = 8, .kv_heads = 8, .vocab = 97}, {rank.table, rank.store},
                         rank.tasks.lane(), {});
  const auto head = factory.loss_head(head_unit, "lm_head.weight");
  rank.store.bind(head_unit, at::randn({97 * 32}, at::kFloat), at::ones({97 * 32}, at::kFloat));
  const auto x = at::randn({kOverlapRows, 32}, at::kFloat);
  const auto targets = at::full({kOverlapRows}, 96, at::kLong);
  const auto loss = [&](bool training) {
    LayerPass pass;
    pass.training = training;
    Declaration declared;
    head->declare(Phase::forward, kOverlapRows, declared);
    at::Tensor value;
    rank.tasks.run("F", pass, declared, [&] { value = head->forward(x.detach().requires_grad_(), targets, pass); });
    return value;
  };
  const auto evaluated = loss(false), trained = loss(true);
  EXPECT_FALSE(evaluated.requires_grad());
  EXPECT_TRUE(trained.requires_grad());
  EXPECT_EQ(evaluated.item<float>(), trained.item<float>());
}

TEST(ShardedFactory, RejectsHeadsThatDoNotDivide) {
  stream::VirtualClock clock;
  const auto group =
      comm::LocalFabric(std::make_shared<comm::LocalWorld>(4), 0).make_collectives("tp", OneRank::ranks(4));
  Tasks tasks(clock, *group);
  shard::ParameterTable table;
  model::ParameterStore store;
  try {
    ShardedFactory({.heads = 12, .kv_heads = 6}, {table, store}, tasks.lane(), {});
    FAIL() << "6 key/value heads over 4 ranks";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "12 heads and 6 key/value heads cannot be cut over tp = 4; use tp in {1, 2, 3, 6, 12}");
  }
}

}  // namespace
}  // namespace orthant::tp::tests
