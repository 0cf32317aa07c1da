// SPDX-License-Identifier: Apache-2.0
// When what runs: all of a unit's gradients before its gate, its gate before anything of the unit before it, and no
// buffer changes hands while a module uses it.
#include <algorithm>

#include <gtest/gtest.h>

#include <ATen/ops/rand.h>
#include <torch/nn/modules/linear.h>

#include <orthant/tests/fsdp/modules/sharded_run.hpp>

namespace orthant::fsdp {
namespace {

using train::Residency;
using Kind = UnitEvent::Kind;

/// Splits a backward pass into units: each must be backward, its gradients, gate, from the last unit to the first.
void expect_units_in_turn(const std::vector<UnitEvent>& events, const std::vector<int>& written_at_gate) {
  int unit = static_cast<int>(written_at_gate.size());
  auto event = events.begin();
  while (event != events.end()) {
    ASSERT_EQ(event->kind, Kind::backward);
    ASSERT_EQ(event->unit, --unit);
    int gradients = 0;
    while (++event != events.end() && event->kind == Kind::gradient) {
      ASSERT_EQ(event->unit, unit);
      ++gradients;
    }
    ASSERT_NE(event, events.end());
    ASSERT_EQ(event->kind, Kind::gate);
    ASSERT_EQ(event->unit, unit);
    EXPECT_EQ(event->written, gradients);
    EXPECT_EQ(event->written, written_at_gate[unit]);
    ++event;
  }
  EXPECT_EQ(unit, 0);
}

TEST(Gate, FiresAfterAllGradientsOfItsUnitAndBeforeAnyOfThePrevious) {
  for (Residency residency : {Residency::chunk, Residency::layer}) {
    tests::run_ranks(2, [&](comm::Fabric& fabric) {
      const TestModel model(fabric.rank());
      std::vector<UnitEvent> events;
      DataRank rank(fabric);
      ShardedModules sharded(model.units(), rank.scheduler(), rank.lanes(),
                             {.engine = {.precision = DType::f64, .residency = {residency, residency}},
                              .microbatches = 2,
                              .observer = [&](const UnitEvent& event) { events.push_back(event); }});
      std::vector<int> written;
      for (const auto& unit : sharded.units()) {
        const auto has_spare =
            std::ranges::any_of(unit.parameters, [](const auto& p) { return p.name.ends_with("spare"); });
        written.push_back(static_cast<int>(unit.parameters.size()) - (has_spare ? 1 : 0));
      }
      EXPECT_EQ(written, (std::vector<int>{2, 10, 10, 10, 3}));
      for (int step = 0; step < 3; ++step) {
        for (int i = 0; i < 2; ++i) {
          const auto loss = model.loss(sharded, user_model::make_batch(kSizes, step * 4, step * 4 + 3 + i));
          events.clear();
          loss.backward();
          expect_units_in_turn(events, written);
          EXPECT_EQ(sharded.unwritten(1), std::vector<std::string>{"first.spare"});
          EXPECT_TRUE(sharded.unwritten(4).empty());
        }
        static_cast<void>(sharded.step({.lr = 1e-2}));
      }
    });
  }
}

/// Two units that no tensor connects, and a third on both: autograd alone would be free to mix them.
TEST(Gate, KeepsUnitsApartThatNoTensorConnects) {
  tests::run_ranks(1, [](comm::Fabric& fabric) {
    torch::nn::Linear left(4, 4), right(4, 4), both(8, 1);
    std::vector<UnitEvent> events;
    DataRank rank(fabric);
    ShardedModules sharded({{"left", left.ptr()}, {"right", right.ptr()}, {"both", both.ptr()}}, rank.scheduler(),
                           rank.lanes(), {.observer = [&](const UnitEvent& event) { events.push_back(event); }});
    const auto x = at::rand({3, 4});
    const auto a = sharded.forward(left, x), b = sharded.forward(right, x);
    const auto y = sharded.run(*both, {a, b}, [&](const Tensors& in) {
      return Tensors{both->forward(at::cat({in[0], in[1]}, 1))};
    });
    events.clear();
    y.front().sum().backward();
    expect_units_in_turn(events, {2, 2, 2});
  });
}

/// A unit whose output leads to no loss has its turn all the same, and contributes zero; passes that are apart stay so.
TEST(Gate, FiresForAUnitThatTheLossDoesNotUse) {
  tests::run_ranks(1, [](comm::Fabric& fabric) {
    torch::nn::Linear first(4, 4), second(4, 4);
    std::vector<UnitEvent> events;
    DataRank rank(fabric);
    ShardedModules sharded({{"first", first.ptr()}, {"second", second.ptr()}}, rank.scheduler(), rank.lanes(),
                           {.observer = [&](const UnitEvent& event) { events.push_back(event); }});
    const auto x = at::rand({3, 4});
    static_cast<void>(sharded.forward(first, x));
    const auto loss = sharded.forward(second, x).sum();
    events.clear();
    loss.backward();
    expect_units_in_turn(events, {0, 2});
    EXPECT_EQ(sharded.unwritten(0), (std::vector<std::string>{"first.weight", "first.bias"}));
    static_cast<void>(sharded.step({}));

    sharded.forward(first, x).sum().backward();
    events.clear();
    sharded.forward(second, x).sum().backward();
    EXPECT_EQ(events.back().unit, 1);
    static_cast<void>(sharded.step({}));
  });
}

/// A unit's second output skips the next unit: its gradient arrives long before that of the first.
TEST(Gate, WaitsForGradientsThatSkipAUnit) {
  tests::run_ranks(1, [](comm::Fabric& fabric) {
    torch::nn::Linear first(4, 4), second(4, 4), third(4, 4);
    std::vector<UnitEvent> events;
    DataRank rank(fabric);
    ShardedModules sharded({{"first", first.ptr()}, {"second", second.ptr()}, {"third", third.ptr()}}, rank.scheduler(),
                           rank.lanes(), {.observer = [&](const UnitEvent& event) { events.push_back(event); }});
    const auto out = sharded.run(*first, {at::rand({3, 4})}, [&](const Tensors& in) {
      const auto y = first->forward(in[0]);
      return Tensors{y.relu(), y.tanh()};
    });
    const auto x = sharded.forward(second, out[0]);
    const auto y =
        sharded.run(*third, {x, out[1]}, [&](const Tensors& in) { return Tensors{third->forward(in[0]) + in[1]}; });
    events.clear();
    y.front().sum().backward();
    expect_units_in_turn(events, {2, 2, 2});
  });
}

TEST(Gate, FiresForAUnitWhoseInputsNeedNoGradientAndPassesAMaskUntouched) {
  tests::run_ranks(1, [](comm::Fabric& fabric) {
    torch::nn::Linear only(4, 4);
    std::vector<UnitEvent> events;
    DataRank rank(fabric);
    ShardedModules sharded({{"only", only.ptr()}}, rank.scheduler(), rank.lanes(),
                           {.observer = [&](const UnitEvent& event) { events.push_back(event); }});
    const auto x = at::rand({3, 4}), mask = x.gt(0.5);
    const auto leaf = at::rand({3, 4}).requires_grad_();
    const auto y = sharded.run(*only, {x, mask, leaf}, [&](const Tensors& in) {
      EXPECT_TRUE(in[0].is_same(x));
      EXPECT_TRUE(in[1].is_same(mask));
      EXPECT_TRUE(in[2].requires_grad() && in[2].data_ptr() == leaf.data_ptr());
      return Tensors{only->forward(in[0]).masked_fill(in[1], 0) * in[2], mask};
    });
    EXPECT_TRUE(y[1].is_same(mask));
    y[0].sum().backward();
    EXPECT_EQ(events.back().kind, Kind::gate);
    EXPECT_EQ(events.back().written, 2);
    EXPECT_TRUE(leaf.grad().defined());
  });
}

/// All blocks in one buffer: its gathers and what uses it must take turns in time.
TEST(Occupation, NoGatherIntoABufferInUseAndNoReductionOutOfIt) {
  tests::run_ranks(2, [](comm::Fabric& fabric) {
    const TestModel model(fabric.rank());
    DataRank rank(fabric, {.scheduler = {.record = true}});
    ShardedModules sharded(model.units(), rank.scheduler(), rank.lanes(),
                           {.engine = {.precision = DType::f64,
                                       .residency = {Residency::layer, Residency::layer},
                                       .alternating_buffers = 1},
                            .microbatches = 2});
    for (int i = 0; i < 2; ++i) model.loss(sharded, user_model::make_batch(kSizes, 0, 4)).backward();
    static_cast<void>(sharded.step({}));
    rank.scheduler().drain();
    const auto records = rank.scheduler().records();
    int gathers = 0, uses = 0;
    const auto of_block = [](const stream::TaskRecord& record, const std::string& prefix) {
      return std::ranges::any_of(std::array{"first", "second", "third"},
                                 [&](const char* name) { return record.name == prefix + name; });
    };
    for (const auto& task : records) {
      if (!of_block(task, "AG ") && !of_block(task, "RS ")) continue;
      ++gathers;
      for (const auto& use : records) {
        if (!of_block(use, "F ") && !of_block(use, "B ")) continue;
        if (task.name.starts_with("RS ") && use.name.starts_with("F ")) continue;
        ++uses;
        EXPECT_TRUE(task.end_us <= use.begin_us || use.end_us <= task.begin_us) << task.name << " during " << use.name;
      }
    }
    // Forward gathers three, backward two more (the last is still there); the next forward finds the first.
    EXPECT_EQ(gathers, 3 + 2 + 2 + 2 + 2 * 3);
    EXPECT_GT(uses, 0);
  });
}

}  // namespace
}  // namespace orthant::fsdp
