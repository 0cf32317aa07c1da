// SPDX-License-Identifier: Apache-2.0
// The simulator against a case worked out by hand, against its own rule checked interval by interval, and against the
// fast clock where slots and links do not bind.
#include <orthant/pipeline/cost/simulate.hpp>

#include <algorithm>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/pipeline/generate/catalog.hpp>
#include <orthant/pipeline/plan/lower.hpp>
#include <orthant/pipeline/schedule/message.hpp>

namespace orthant::pipeline {
namespace {

using enum OpKind;

/// Two ranks, a stage each, three micro-batches. Rank 1 computes B0 before F1, and F2 right after F1.
Schedule slow_reader(int slots) {
  const auto op = [](OpKind kind, int stage, int m) { return Op{kind, StageId{stage}, MicrobatchId{m}}; };
  Schedule plan{.name = "slow_reader",
                .stages = 2,
                .microbatches = 3,
                .slots = slots,
                .placement = loop_placement(2, 1),
                .ranks = {}};
  plan.ranks.push_back({op(forward, 0, 0), op(send_activation, 0, 0), op(forward, 0, 1), op(send_activation, 0, 1),
                        op(forward, 0, 2), op(send_activation, 0, 2), op(receive_gradient, 0, 0), op(backward, 0, 0),
                        op(receive_gradient, 0, 1), op(backward, 0, 1), op(receive_gradient, 0, 2),
                        op(backward, 0, 2)});
  plan.ranks.push_back({op(receive_activation, 1, 0), op(forward, 1, 0), op(receive_activation, 1, 1),
                        op(backward, 1, 0), op(send_gradient, 1, 0), op(forward, 1, 1), op(receive_activation, 1, 2),
                        op(forward, 1, 2), op(backward, 1, 1), op(send_gradient, 1, 1), op(backward, 1, 2),
                        op(send_gradient, 1, 2)});
  return plan;
}
const Costs kSlowReader{.stages = {{.forward = 1, .input = 1, .weight = 1}, {.forward = 1, .input = 6, .weight = 4}},
                        .message = 2};

// One slot: F1 of rank 1 begins at 14, so the message for F2 runs 14..16 and F2 begins at 16, not at 15.
TEST(Simulate, WaitsForASlotUntilItsReaderBegins) {
  const Simulation one = simulate(slow_reader(1), kSlowReader);
  EXPECT_EQ(one.timing.makespan, 41);
  EXPECT_EQ(one.timing.span, 41);
  EXPECT_EQ(one.timing.ideal, 33);
  EXPECT_EQ(one.timing.idle, (std::vector<double>{32, 8}));
  EXPECT_EQ(one.timing.peak, (std::vector<double>{3, 2}));
  EXPECT_EQ(one.timing.ops[1][3].begin, 16);
  EXPECT_EQ(one.exposed_per_rank, (std::vector<double>{6, 3}));
  EXPECT_EQ(one.exposed_communication, 9);
  EXPECT_EQ(one.messages.size(), 6u);
  const auto last =
      std::ranges::find(one.messages, Op{send_activation, StageId{0}, MicrobatchId{2}}, &MessageInterval::send);
  ASSERT_NE(last, one.messages.end());
  EXPECT_EQ(last->source, 0);
  EXPECT_EQ(last->destination, 1);
  EXPECT_EQ(last->at.begin, 14);
  EXPECT_EQ(last->at.end, 16);

  const Simulation two = simulate(slow_reader(2), kSlowReader);
  EXPECT_EQ(two.timing.makespan, 40);
  EXPECT_EQ(two.exposed_per_rank, (std::vector<double>{6, 2}));
}

TEST(Simulate, RejectsWhatCannotRun) {
  Schedule unread = slow_reader(1);  // the second RECV before the first is read
  std::swap(unread.ranks[1][1], unread.ranks[1][2]);
  EXPECT_THROW(simulate(unread, {}), InternalError);
  EXPECT_NO_THROW(simulate([&] { return unread.slots = 2, unread; }(), {}));

  Schedule crossed = slow_reader(3);  // ends of a channel disagree
  std::swap(crossed.ranks[0][1], crossed.ranks[0][3]);
  EXPECT_THROW(simulate(crossed, {}), InternalError);

  Schedule lost = slow_reader(1);  // a message is never sent
  std::erase(lost.ranks[0], Op{send_activation, StageId{0}, MicrobatchId{2}});
  EXPECT_THROW(simulate(lost, {}), InternalError);

  EXPECT_THROW(simulate(make_schedule({.name = "1f1b", .ranks = 2, .microbatches = 2}), {}), InternalError);
}

/// Calls `check(schedule)` for every schedule of the catalog at small sizes.
template <class Check>
void for_small_schedules(Check check) {
  int legal = 0;
  for (const std::string_view name : schedule_names()) {
    for (int p = 1; p <= 4; ++p) {
      for (const int m : {1, 2, p, 2 * p + 1, 3 * p, 4 * p}) {
        const ScheduleRequest request{.name = std::string(name), .ranks = p, .microbatches = m};
        if (!broken_rule(request).empty()) continue;
        SCOPED_TRACE(testing::Message() << name << " p" << p << " m" << m);
        check(make_schedule(request));
        ++legal;
      }
    }
  }
  EXPECT_GT(legal, 10);
}

TEST(Simulate, EqualsTheFastClockWhereSlotsSuffice) {
  for_small_schedules([](const Schedule& schedule) {
    for (const double overlapped : {0.0, 25.0}) {
      Costs costs = uniform_costs({.forward = 10, .input = 10, .weight = 10}, 1);
      costs.overlapped = overlapped;
      const MemoryModel held{.forward = 2, .input = -1, .weight = -1};
      const Timing fast = time_schedule(schedule, costs, held);
      const Timing simulated = simulate(lower(schedule, slots_for(schedule)), costs, held).timing;
      EXPECT_EQ(simulated.makespan, fast.makespan);
      EXPECT_EQ(simulated.span, fast.span);
      EXPECT_EQ(simulated.ideal, fast.ideal);
      EXPECT_EQ(simulated.idle, fast.idle);
      EXPECT_EQ(simulated.peak, fast.peak);
    }
  });
}

/// The rule of simulate.hpp, checked on what it returned. Since nothing waits for itself, only one timeline keeps it.
class RuleCheck {
 public:
  RuleCheck(const Schedule& lowered, const Costs& costs, const Simulation& simulation)
      : lowered_(lowered), compute_(compute_only(lowered)), costs_(costs), simulation_(simulation) {
    for (std::size_t rank = 0; rank < compute_.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < compute_.ranks[rank].size(); ++i)
        at_[compute_.ranks[rank][i]] = simulation.timing.ops[rank][i];
    }
    for (const MessageInterval& message : simulation.messages) at_[matching_receive(message.send)] = message.at;
  }

  void run() {
    for (const auto& ops : compute_.ranks) computations(ops);
    messages();
    double exposed = 0;
    for (std::size_t rank = 0; rank < compute_.ranks.size(); ++rank) {
      EXPECT_LE(simulation_.exposed_per_rank[rank], simulation_.timing.idle[rank] + 1e-9);
      exposed += simulation_.exposed_per_rank[rank];
    }
    EXPECT_EQ(exposed, simulation_.exposed_communication);
  }

 private:
  Op producer(const Op& receive) const {
    const Op send = matching_send(receive);
    const bool gradient = send.kind == send_gradient;
    const Op whole{gradient ? backward : forward, send.stage, send.microbatch};
    return at_.contains(whole) ? whole : Op{backward_input, send.stage, send.microbatch};
  }

  void messages() {
    for (const auto& ops : lowered_.ranks) {
      std::map<ChannelKey, std::vector<Op>> received;
      for (const Op& op : ops) {
        if (!is_receive(op.kind)) continue;
        auto& before = received[channel_of(lowered_, op)];
        double begin = at_.at(producer(op)).end;
        if (!before.empty()) begin = std::max(begin, at_.at(before.back()).end);
        const auto slots = static_cast<std::size_t>(lowered_.slots);
        if (before.size() >= slots) begin = std::max(begin, taken_.at(before[before.size() - slots]));
        EXPECT_EQ(at_.at(op).begin, begin) << to_text(op);
        EXPECT_EQ(at_.at(op).end, begin + costs_.message) << to_text(op);
        before.push_back(op);
      }
    }
  }

  void computations(const std::vector<Op>& ops) {
    double free_at = 0;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (i > 0 && ops[i - 1].joins_next) continue;
      double begin = free_at;
      double cost = 0;
      for (std::size_t k = i; k <= i + (ops[i].joins_next ? 1 : 0); ++k) {
        if (const auto receive = receive_before(compute_, ops[k]))
          taken_[*receive] = begin = std::max(begin, at_.at(*receive).end);
        cost += cost_of(ops[k].kind, costs_.of(compute_, ops[k].stage));
        EXPECT_EQ(at_.at(ops[k]).begin, at_.at(ops[i]).begin) << to_text(ops[k]);
      }
      EXPECT_EQ(at_.at(ops[i]).begin, begin) << to_text(ops[i]);
      EXPECT_EQ(at_.at(ops[i]).end, begin + cost) << to_text(ops[i]);
      free_at = at_.at(ops[i]).end;
    }
  }

  const Schedule& lowered_;
  const Schedule compute_;
  const Costs& costs_;
  const Simulation& simulation_;
  std::map<Op, Interval> at_;
  std::map<Op, double> taken_;  ///< by RECV: an operation takes its message as it begins, a pair its two in turn
};

TEST(Simulate, KeepsItsRuleWithAnySlotsAndCosts) {
  std::mt19937 random(7);
  const auto cost = [&] { return 1.0 * std::uniform_int_distribution(1, 40)(random); };
  for_small_schedules([&](const Schedule& schedule) {
    Costs costs{.stages = {}, .message = cost(), .overlapped = 0};
    for (int stage = 0; stage < schedule.depth(); ++stage) costs.stages.push_back({cost(), cost(), cost()});
    const int slots = slots_for(schedule) + std::uniform_int_distribution(0, 2)(random);
    const Schedule lowered = lower(schedule, slots);
    const Simulation simulation = simulate(lowered, costs);
    RuleCheck(lowered, costs, simulation).run();
  });
}

TEST(Simulate, HidesNothingWhereMessagesCostNothing) {
  for_small_schedules([](const Schedule& schedule) {
    EXPECT_EQ(simulate(lower(schedule, slots_for(schedule)), {}).exposed_communication, 0);
  });
}

// Source: reference case 8 (7a): 1F1B, p 4, m 12, 10, 10, 10, 1.
TEST(Simulate, GivesThePublishedMakespans) {
  const auto makespan = [](const char* name, int p, int m, StageCosts stage, double message) {
    const Schedule schedule = make_schedule({.name = name, .ranks = p, .microbatches = m});
    return simulate(lower(schedule, slots_for(schedule)), uniform_costs(stage, message)).timing.makespan;
  };
  EXPECT_EQ(makespan("1f1b", 4, 12, {10, 10, 10}, 1), 472);
  EXPECT_EQ(makespan("zb_h1", 4, 12, {10, 10, 10}, 1), 402);
  EXPECT_EQ(makespan("1f1b", 8, 24, {18522, 18086, 9337}, 601), 1456749);
  EXPECT_EQ(makespan("zb_h1", 8, 24, {18522, 18086, 9337}, 601), 1310405);
}

}  // namespace
}  // namespace orthant::pipeline
