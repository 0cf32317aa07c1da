// SPDX-License-Identifier: Apache-2.0
// Lowering is proved by the validator, and the validator by an interpreter that plays schedules with values: over all
// small schedules and thousands of mutations, the one finds a problem exactly where the other hangs or computes
// something else.
#include <orthant/pipeline/validate.hpp>

#include <map>
#include <random>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/pipeline/lower.hpp>
#include <orthant/pipeline/message.hpp>
#include <orthant/pipeline/timing.hpp>

namespace orthant::pipeline {
namespace {

/// Runs lists in line over unbuffered channels that know no micro-batch: what a SEND gives, the next RECV of its
/// channel gets.
class Interpreter {
 public:
  explicit Interpreter(const Schedule& schedule) : schedule_(schedule), at_(schedule.ranks.size()) {}

  bool computes_the_step(bool trains) {
    for (bool progress = true; progress && !failed_;) {
      progress = false;
      for (std::size_t rank = 0; rank < at_.size(); ++rank) {
        while (!failed_ && step(rank)) progress = true;
      }
    }
    std::string all;
    for (int m = 0; m < schedule_.microbatches; ++m) all += fmt::format("{} ", m);
    for (std::size_t rank = 0; rank < at_.size(); ++rank) {
      if (at_[rank] != schedule_.ranks[rank].size()) return false;
      if (tail_[static_cast<int>(rank)] != (trains ? "NORM_UNITS TIE NORM STEP " : "")) return false;
    }
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      const std::string gradients = trains ? all : "";
      if (loss_[stage] != all || norm_sum_[stage] != gradients || weight_sum_[stage] != gradients) return false;
    }
    return !failed_ && inbox_.empty() && outbox_.empty() && (!trains || saved_.empty()) && pending_.empty();
  }

 private:
  using Key = std::pair<OpKind, std::pair<int, int>>;  ///< channel by its RECV, stage, micro-batch
  static Key key(OpKind kind, const Op& op) { return {kind, {op.stage.value, op.microbatch.value}}; }

  void check(bool condition) { failed_ |= !condition; }

  std::string take(std::map<Key, std::string>& box, const Key& key) {
    const auto node = box.extract(key);
    check(!node.empty());
    return node.empty() ? "" : node.mapped();
  }
  void put(std::map<Key, std::string>& box, const Key& key, std::string value) {
    check(box.emplace(key, std::move(value)).second);
  }

  bool step(std::size_t rank) {
    if (at_[rank] == schedule_.ranks[rank].size()) return false;
    const Op& op = schedule_.ranks[rank][at_[rank]];
    if (is_tail(op.kind)) {
      tail_[static_cast<int>(rank)] += std::string(letters(op.kind)) + " ";
    } else {
      check(tail_[static_cast<int>(rank)].empty() && op.stage.value == static_cast<int>(rank));
      if (is_receive(op.kind)) return false;
      if (is_send(op.kind)) {
        if (!hand_over(op)) return false;
      } else {
        compute(op);
      }
    }
    ++at_[rank];
    return true;
  }

  bool hand_over(const Op& send) {
    const Op wanted = matching_receive(send);
    const std::size_t peer = static_cast<std::size_t>(wanted.stage.value);
    if (peer >= at_.size() || at_[peer] == schedule_.ranks[peer].size()) return false;
    const Op& receive = schedule_.ranks[peer][at_[peer]];
    if (receive.kind != wanted.kind || receive.stage != wanted.stage || !tail_[static_cast<int>(peer)].empty())
      return false;
    put(inbox_, key(receive.kind, receive), take(outbox_, key(send.kind, send)));
    int unread = 0;
    for (const auto& entry : inbox_)
      unread += entry.first.first == receive.kind && entry.first.second.first == receive.stage.value;
    check(unread <= schedule_.slots);
    ++at_[peer];
    return true;
  }

  void compute(const Op& op) {
    const int s = op.stage.value, m = op.microbatch.value;
    const Key place = key(OpKind::forward, op);
    if (op.kind == OpKind::forward) {
      const std::string in = s == 0 ? fmt::format("x{}", m) : take(inbox_, key(OpKind::receive_activation, op));
      check(in == fmt::format("x{}", m) && m >= 0 && m < schedule_.microbatches);
      put(saved_, place, in);
      loss_[s] += fmt::format("{} ", m);
      if (s + 1 < schedule_.stages) put(outbox_, key(OpKind::send_activation, op), in);
      return;
    }
    if (makes_input_gradient(op.kind)) {
      const std::string in = take(saved_, place);
      if (s + 1 < schedule_.stages) check(take(inbox_, key(OpKind::receive_gradient, op)) == in);
      if (s > 0) put(outbox_, key(OpKind::send_gradient, op), in);
      norm_sum_[s] += fmt::format("{} ", m);
      put(pending_, place, in);
    }
    if (makes_weight_gradient(op.kind)) {
      take(pending_, place);
      weight_sum_[s] += fmt::format("{} ", m);
    }
  }

  const Schedule& schedule_;
  std::vector<std::size_t> at_;
  std::map<Key, std::string> inbox_, outbox_, saved_, pending_;
  std::map<int, std::string> loss_, norm_sum_, weight_sum_, tail_;
  bool failed_ = false;
};

bool is_right(const Schedule& schedule, bool trains) { return Interpreter(schedule).computes_the_step(trains); }

struct Generated {
  std::string_view name;
  Schedule (*make)(int stages, int microbatches);
};

class EverySchedule : public testing::TestWithParam<Generated> {
 protected:
  Schedule make(int stages, int microbatches) const { return GetParam().make(stages, microbatches); }
  bool trains() const { return GetParam().make != forward_only; }
};
INSTANTIATE_TEST_SUITE_P(Pipeline, EverySchedule,
                         testing::Values(Generated{"gpipe", gpipe}, Generated{"1f1b", one_f_one_b},
                                         Generated{"zb_h1", zb_h1}, Generated{"forward_only", forward_only}),
                         [](const auto& test) { return "of_" + std::string(test.param.name); });

TEST_P(EverySchedule, IsSafeWithOneSlotForAnyStagesAndMicrobatches) {
  for (int p = 1; p <= 16; ++p) {
    for (int m = 1; m <= 20; ++m) {
      const Schedule schedule = lower(make(p, m), 1);
      const Proof proof = validate(schedule);
      ASSERT_TRUE(proof.problems.empty()) << "p" << p << " m" << m << " " << proof.problems.front();
      ASSERT_TRUE(is_right(schedule, trains())) << "p" << p << " m" << m;
    }
  }
}

TEST_P(EverySchedule, KeepsItsComputeOrderWhenLowered) {
  const Schedule schedule = make(4, 7);
  for (int slots = 1; slots <= 3; ++slots) {
    Schedule lowered = lower(schedule, slots);
    EXPECT_TRUE(validate(lowered).problems.empty());
    for (auto& ops : lowered.ranks) std::erase_if(ops, [](const Op& op) { return !is_compute(op.kind); });
    EXPECT_EQ(lowered.ranks, schedule.ranks);
  }
}

TEST_P(EverySchedule, RunsAtFullSpeedInLineWithOneSlot) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 12; ++m) {
      const Schedule schedule = make(p, m);
      EXPECT_EQ(time_schedule(lower(schedule, 1), {}).makespan, time_schedule(schedule, {}).makespan) << p << " " << m;
    }
  }
}

TEST_P(EverySchedule, LosesAndRepeatsNoOperationUnnoticed) {
  for (const auto& [p, m] : {std::pair{1, 1}, {1, 3}, {2, 2}, {3, 4}, {4, 3}}) {
    const Schedule good = lower(make(p, m), 1);
    for (std::size_t rank = 0; rank < good.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < good.ranks[rank].size(); ++i) {
        const Op op = good.ranks[rank][i];
        Schedule dropped = good, repeated = good;
        dropped.ranks[rank].erase(dropped.ranks[rank].begin() + static_cast<std::ptrdiff_t>(i));
        EXPECT_FALSE(validate(dropped).problems.empty()) << "without " << to_text(op) << " of rank " << rank;
        repeated.ranks[rank].insert(repeated.ranks[rank].begin() + static_cast<std::ptrdiff_t>(i), op);
        EXPECT_FALSE(validate(repeated).problems.empty()) << "twice " << to_text(op) << " of rank " << rank;
      }
    }
  }
}

TEST_P(EverySchedule, IsRejectedExactlyWhenAMutationIsHarmful) {
  std::mt19937 random(7);
  int harmless = 0;
  for (int trial = 0; trial < 6000; ++trial) {
    const int p = std::uniform_int_distribution(1, 4)(random), m = std::uniform_int_distribution(1, 5)(random);
    Schedule schedule = lower(make(p, m), std::uniform_int_distribution(1, 2)(random));
    auto& ops = schedule.ranks[std::uniform_int_distribution<std::size_t>(0, schedule.ranks.size() - 1)(random)];
    const auto any_place = [&] { return std::uniform_int_distribution<std::size_t>(0, ops.size() - 1)(random); };
    const std::size_t a = any_place(), b = any_place();
    std::string what;
    switch (trial % 5) {
      case 0:
        what = fmt::format("swapped {} and {}", to_text(ops[a]), to_text(ops[b]));
        std::swap(ops[a], ops[b]);
        break;
      case 1: {
        const std::size_t next = std::min(a + 1, ops.size() - 1);
        what = fmt::format("swapped neighbours {} and {}", to_text(ops[a]), to_text(ops[next]));
        std::swap(ops[a], ops[next]);
        break;
      }
      case 2: {
        what = fmt::format("moved {} from {} to {}", to_text(ops[a]), a, b);
        const Op op = ops[a];
        ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(a));
        ops.insert(ops.begin() + static_cast<std::ptrdiff_t>(b), op);
        break;
      }
      case 3: {
        Op op = ops[a];
        if (!is_tail(op.kind))
          op.kind = static_cast<OpKind>(random() % (static_cast<int>(OpKind::receive_gradient) + 1));
        what = fmt::format("inserted {} at {}", to_text(op), b);
        ops.insert(ops.begin() + static_cast<std::ptrdiff_t>(b), op);
        break;
      }
      default:
        what = fmt::format("{} of another stage or micro-batch", to_text(ops[a]));
        ++(random() % 2 ? ops[a].stage.value : ops[a].microbatch.value);
        if (is_tail(ops[a].kind)) ops[a] = {ops[a].kind, {}, {}};
    }
    const bool right = is_right(schedule, trains());
    harmless += right;
    const Proof proof = validate(schedule);
    ASSERT_EQ(proof.problems.empty(), right) << "p" << p << " m" << m << " " << what << "\n"
                                             << to_text(schedule) << (right ? proof.problems.front() : "");
  }
  EXPECT_GT(harmless, 100);
}

TEST(Validate, NamesTheOffendingOperation) {
  Schedule schedule = lower(zb_h1(2, 2), 1);
  ASSERT_EQ(to_text(schedule),
            "rank 0: F0 SEND a0 F1 SEND a1 RECV g0 I0 W0 RECV g1 I1 W1 NORM_UNITS TIE NORM STEP\n"
            "rank 1: RECV a0 F0 RECV a1 I0 SEND g0 F1 I1 SEND g1 W0 W1 NORM_UNITS TIE NORM STEP\n");
  std::swap(schedule.ranks[1][8], schedule.ranks[1][9]);
  EXPECT_EQ(validate(schedule).problems,
            std::vector<std::string>{"rank 1: W s1 m0 stands after that of m1: sums have an order"});
  std::swap(schedule.ranks[1][8], schedule.ranks[1][9]);
  std::swap(schedule.ranks[0][3], schedule.ranks[0][4]);
  EXPECT_EQ(validate(schedule).problems,
            (std::vector<std::string>{"rank 0: unbuffered sends hang it at RECV g s0 m0 (operation 3)",
                                      "rank 1: unbuffered sends hang it at RECV a s1 m1 (operation 2)"}));
}

TEST(Validate, WantsNormGradientsInOrderToo) {
  Schedule schedule = zb_h1(1, 2);
  ASSERT_EQ(to_text(schedule), "rank 0: F0 I0 W0 F1 I1 W1\n");
  auto& ops = schedule.ranks[0];
  ops = {ops[0], ops[3], ops[4], ops[1], ops[2], ops[5]};  // F0 F1 I1 I0 W0 W1
  EXPECT_EQ(validate(lower(schedule, 1)).problems,
            std::vector<std::string>{"rank 0: I s0 m0 stands after that of m1: sums have an order"});
}

TEST(Lower, HoldsBackASenderWhoseReceiverHasNoFreeSlot) {
  Schedule schedule = gpipe(2, 3);
  schedule.ranks[1] = one_f_one_b(2, 3).ranks[1];
  EXPECT_TRUE(validate(lower(schedule, 1)).problems.empty());
  EXPECT_TRUE(validate(lower(schedule, 2)).problems.empty());
  EXPECT_NE(lower(schedule, 1).ranks, lower(schedule, 2).ranks);
}

TEST(Lower, RefusesAnOrderThatCannotRun) {
  Schedule schedule = gpipe(2, 2);
  std::swap(schedule.ranks[0][1], schedule.ranks[0][2]);  // F0 B0 F1 B1 over all of rank 1's forwards first
  try {
    lower(schedule, 1);
    FAIL() << "accepted";
  } catch (const InternalError& error) {
    EXPECT_STREQ(error.what(), "schedule gpipe cannot be lowered with 1 slot(s); rank 0 at B s0 m0; rank 1 at F s1 m1");
  }
}

}  // namespace
}  // namespace orthant::pipeline
