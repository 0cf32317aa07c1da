// SPDX-License-Identifier: Apache-2.0
// Lowering is proved by the validator, and the validator by an interpreter that plays schedules with values: over all
// small schedules and thousands of mutations, the one finds a problem exactly where the other hangs or computes
// something else.
#include <orthant/pipeline/plan/validate.hpp>

#include <cstdlib>
#include <random>

#include <gtest/gtest.h>

#include <orthant/pipeline/cost/timing.hpp>
#include <orthant/pipeline/plan/lower.hpp>
#include <orthant/tests/pipeline/plan/every_schedule.hpp>
#include <orthant/tests/pipeline/plan/in_line_interpreter.hpp>

namespace orthant::pipeline {
namespace {

using tests::InLineInterpreter;
using Problems = std::vector<std::string>;

Schedule lowered(std::string_view name, int ranks, int microbatches) {
  const Schedule schedule = make_schedule({.name = std::string(name), .ranks = ranks, .microbatches = microbatches});
  return lower(schedule, slots_for(schedule));
}

class EverySchedule : public testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Pipeline, EverySchedule, tests::schedule_names_of_tests(), tests::test_name);

/// All up to 24 for few ranks; for many, those next to multiples of the number of ranks. ORTHANT_FULL: all.
bool is_sampled(int ranks, int microbatches) {
  return std::getenv("ORTHANT_FULL") != nullptr || ranks <= 4 || microbatches <= 2 || microbatches == 24 ||
         (microbatches + 1) % ranks <= 2;
}

TEST_P(EverySchedule, IsSafeAtEverySize) {
  int checked = 0;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int microbatches = 1; microbatches <= 24; ++microbatches) {
      if (!is_sampled(ranks, microbatches)) continue;
      tests::for_chunks(GetParam(), ranks, microbatches, [&](const ScheduleRequest& request) {
        const Schedule schedule = make_schedule(request);
        const Proof proof = validate(lower(schedule, slots_for(schedule)));
        ASSERT_EQ(proof.problems, Problems{}) << tests::text_of(request);
        ASSERT_EQ(proof.hang_on_streams + proof.hang_in_line, "") << tests::text_of(request);
        ++checked;
      });
    }
  }
  EXPECT_GT(checked, 20);
}

TEST_P(EverySchedule, EvaluatesSafelyToo) {
  for (const int ranks : {1, 2, 4}) {
    tests::for_chunks(GetParam(), ranks, 8, [&](const ScheduleRequest& request) {
      const Schedule schedule = forward_only(make_schedule(request));
      const Schedule plan = lower(schedule, slots_for(schedule));
      EXPECT_EQ(validate(plan).problems, Problems{}) << tests::text_of(request);
      EXPECT_TRUE(InLineInterpreter(plan).computes_the_step(false)) << tests::text_of(request);
    });
  }
}

TEST_P(EverySchedule, ComputesTheStepAndItsPeaksAreTheSimulators) {
  for (const auto& [ranks, microbatches] : {std::pair{1, 3}, {2, 4}, {3, 7}, {4, 8}, {4, 9}}) {
    tests::for_chunks(GetParam(), ranks, microbatches, [&](const ScheduleRequest& request) {
      const Schedule schedule = make_schedule(request);
      const Schedule plan = lower(schedule, slots_for(schedule));
      const Proof proof = validate(plan);
      const InLineInterpreter interpreter(plan);
      EXPECT_TRUE(interpreter.computes_the_step(true)) << tests::text_of(request);
      EXPECT_EQ(proof.sums_in_order, interpreter.adds_in_order()) << tests::text_of(request);
      const std::vector<double> peaks = time_schedule(schedule, {}).peak;
      EXPECT_EQ(std::vector<double>(proof.peak_activations.begin(), proof.peak_activations.end()), peaks)
          << tests::text_of(request);
    });
  }
}

TEST_P(EverySchedule, LosesAndRepeatsNoOperationUnnoticed) {
  int checked = 0;
  for (const auto& [ranks, microbatches] : {std::pair{1, 1}, {1, 3}, {2, 2}, {2, 4}, {3, 4}, {4, 3}}) {
    tests::for_chunks(GetParam(), ranks, microbatches, [&](const ScheduleRequest& request) {
      const Schedule schedule = make_schedule(request);
      const Schedule good = lower(schedule, slots_for(schedule));
      for (std::size_t rank = 0; rank < good.ranks.size(); ++rank) {
        for (std::size_t i = 0; i < good.ranks[rank].size(); ++i) {
          const Op op = good.ranks[rank][i];
          Schedule dropped = good, repeated = good;
          dropped.ranks[rank].erase(dropped.ranks[rank].begin() + static_cast<std::ptrdiff_t>(i));
          ASSERT_FALSE(validate(dropped).problems.empty()) << "without " << to_text(op) << " of rank " << rank;
          repeated.ranks[rank].insert(repeated.ranks[rank].begin() + static_cast<std::ptrdiff_t>(i), op);
          ASSERT_FALSE(validate(repeated).problems.empty()) << "twice " << to_text(op) << " of rank " << rank;
          ++checked;
        }
      }
    });
  }
  EXPECT_GT(checked, 30);
}

/// One change to a rank's list, harmful or not; in words.
std::string mutate(std::vector<Op>& ops, int way, std::mt19937& random) {
  const auto any_place = [&] { return std::uniform_int_distribution<std::size_t>(0, ops.size() - 1)(random); };
  const std::size_t a = any_place(), b = any_place(), next = std::min(a + 1, ops.size() - 1);
  const auto at = [&](std::size_t i) { return ops.begin() + static_cast<std::ptrdiff_t>(i); };
  switch (way) {
    case 0:
      std::swap(ops[a], ops[b]);
      return fmt::format("swapped {} and {}", to_text(ops[b]), to_text(ops[a]));
    case 1:
      std::swap(ops[a], ops[next]);
      return fmt::format("swapped neighbours {} and {}", to_text(ops[next]), to_text(ops[a]));
    case 2: {
      const Op op = ops[a];
      ops.erase(at(a));
      ops.insert(at(b), op);
      return fmt::format("moved {} from {} to {}", to_text(op), a, b);
    }
    case 3: {
      Op op = ops[a];
      if (!is_tail(op.kind)) op.kind = static_cast<OpKind>(random() % (static_cast<int>(OpKind::reduce) + 1));
      ops.insert(at(b), op);
      return fmt::format("inserted {} at {}", to_text(op), b);
    }
    default: {
      const std::string before = to_text(ops[a]);
      if (!is_tail(ops[a].kind)) (random() % 2 ? ops[a].stage.value : ops[a].microbatch.value) += random() % 2 ? 1 : -1;
      return fmt::format("{} of another stage or micro-batch", before);
    }
  }
}

TEST_P(EverySchedule, IsRejectedExactlyWhenAMutationIsHarmful) {
  std::mt19937 random(7);
  int harmless = 0, harmful = 0;
  for (int trial = 0; harmless + harmful < 1000; ++trial) {
    ASSERT_LT(trial, 20000);
    const auto draw = [&](int high) { return std::uniform_int_distribution(1, high)(random); };
    const ScheduleRequest request{.name = std::string(GetParam()), .ranks = draw(4), .microbatches = draw(8)};
    if (!broken_rule(request).empty()) continue;
    const Schedule compute = make_schedule(request);
    Schedule schedule = lower(compute, slots_for(compute) + draw(2) - 1);
    const std::string what = mutate(schedule.ranks[random() % schedule.ranks.size()], trial % 5, random);
    const Proof proof = validate(schedule);
    const bool right = InLineInterpreter(schedule).computes_the_step(true);
    ASSERT_EQ(proof.problems.empty(), right) << tests::text_of(request) << " " << what << "\n"
                                             << to_text(schedule) << (right ? proof.problems.front() : "");
    if (right) {
      ASSERT_EQ(proof.sums_in_order, InLineInterpreter(schedule).adds_in_order()) << what << "\n" << to_text(schedule);
    }
    ++(right ? harmless : harmful);
  }
  EXPECT_GT(harmless, 20);
  EXPECT_GT(harmful, 300);
}

/// zb_h1 on two ranks, one operation replaced by another.
Problems problems_with(int rank, std::size_t i, const Op& op) {
  Schedule schedule = lowered("zb_h1", 2, 2);
  schedule.ranks[static_cast<std::size_t>(rank)].at(i) = op;
  return validate(schedule).problems;
}

TEST(Validate, NamesWhatIsForeignAndWhatIsMissing) {
  ASSERT_EQ(to_text(lowered("zb_h1", 2, 2)),
            "rank 0: F0 SEND a0 F1 SEND a1 RECV g0 I0 W0 RECV g1 I1 W1 NORM_UNITS TIE NORM STEP\n"
            "rank 1: RECV a0 F0 RECV a1 I0 SEND g0 F1 I1 SEND g1 W0 W1 NORM_UNITS TIE NORM STEP\n");
  const auto op = [](OpKind kind, int stage, int m) { return Op{kind, StageId{stage}, MicrobatchId{m}}; };
  EXPECT_EQ(problems_with(0, 0, op(OpKind::forward, 1, 0)),
            (Problems{"rank 0: F s1 m0 does not belong there: stage 1 is on rank 1", "rank 0: F s0 m0 is missing"}));
  EXPECT_EQ(problems_with(1, 1, op(OpKind::forward, 1, 2)),
            (Problems{"rank 1: F s1 m2 does not belong there: micro-batches 0 to 1 go through stage 1",
                      "rank 1: F s1 m0 is missing"}));
  EXPECT_EQ(problems_with(1, 4, op(OpKind::send_activation, 1, 0)),
            (Problems{"rank 1: SEND a s1 m0 does not belong there: no neighbour on another rank takes it",
                      "rank 1: SEND g s1 m0 is missing"}));
  EXPECT_EQ(problems_with(0, 4, op(OpKind::receive_activation, 0, 0)),
            (Problems{"rank 0: RECV a s0 m0 does not belong there: no neighbour on another rank gives it",
                      "rank 0: RECV g s0 m0 is missing"}));
  EXPECT_EQ(problems_with(0, 9, op(OpKind::backward, 0, 1)),
            (Problems{"rank 0: B s0 m1 does not belong there: I or W stands for it", "rank 0: W s0 m1 is missing"}));
  EXPECT_EQ(problems_with(0, 9, op(OpKind::unshard, 0, 1)),
            (Problems{"rank 0: UNSHARD s0 m1 does not belong there: units are gathered and reduced by layer tasks",
                      "rank 0: W s0 m1 is missing"}));
  EXPECT_EQ(problems_with(1, 9, op(OpKind::backward_weight, 1, 0)),
            (Problems{"rank 1: W s1 m0 stands there 2 times", "rank 1: W s1 m1 is missing"}));
  EXPECT_EQ(problems_with(1, 9, op(OpKind::forward, 5, 0)),
            (Problems{"rank 1: F s5 m0 does not belong there: there are 2 stages", "rank 1: W s1 m1 is missing"}));
}

TEST(Validate, NamesTheFirstOperationOutOfOrder) {
  Schedule schedule = lowered("zb_h1", 2, 2);
  std::swap(schedule.ranks[1][7], schedule.ranks[1][8]);  // harmless: SEND g1 after W0
  EXPECT_EQ(validate(schedule).problems, Problems{});
  std::swap(schedule.ranks[0][5], schedule.ranks[0][6]);
  EXPECT_EQ(validate(schedule).problems, Problems{"rank 0: W s0 m0 stands before I s0 m0"});
  std::swap(schedule.ranks[0][9], schedule.ranks[0][10]);
  std::swap(schedule.ranks[1][0], schedule.ranks[1][1]);
  EXPECT_EQ(validate(schedule).problems[0], "rank 1: F s1 m0 stands before RECV a s1 m0");
  EXPECT_EQ(validate(schedule).problems[1], "rank 0: W s0 m0 stands before I s0 m0");
  EXPECT_EQ(validate(schedule).problems[2], "rank 0: W s0 m1 stands after NORM_UNITS");
}

TEST(Validate, NamesTheRankThatStandsStill) {
  Schedule schedule = lowered("zb_h1", 2, 2);
  std::swap(schedule.ranks[0][3], schedule.ranks[0][4]);
  EXPECT_EQ(validate(schedule).problems,
            Problems{"in line, with unbuffered sends, it stands still: "
                     "rank 0 at RECV g s0 m0 (operation 3); rank 1 at RECV a s1 m1 (operation 2)"});
}

TEST(Validate, NamesAMessageOutOfTurn) {
  Schedule schedule = lowered("gpipe", 2, 3);
  ASSERT_EQ(to_text(schedule).substr(0, 42), "rank 0: F0 SEND a0 F1 SEND a1 F2 SEND a2 R");
  auto& ops = schedule.ranks[0];
  std::swap(ops[3], ops[5]);  // SEND a2 cannot stand before F2
  std::swap(ops[3], ops[4]);
  EXPECT_EQ(validate(schedule).hang_on_streams,
            "a 0>1: as operation 1 rank 0 asks for SEND a s0 m2 where rank 1 asks for SEND a s0 m1");
}

TEST(Validate, NamesAMessageWithoutASlot) {
  Schedule schedule = lowered("1f1b", 2, 4);
  auto& ops = schedule.ranks[1];
  ASSERT_EQ(to_text(schedule).substr(to_text(schedule).find("rank 1"), 37), "rank 1: RECV a0 F0 RECV a1 B0 SEND g0");
  std::swap(ops[1], ops[2]);
  EXPECT_EQ(validate(schedule).problems[0], "rank 1: RECV a s1 m1 finds no free slot (1 in all): F s1 m0 comes later");
  schedule.slots = 2;
  EXPECT_EQ(validate(schedule).problems, Problems{});
}

TEST(Validate, WantsATailInOrderAndOnlyWhereTheStepTrains) {
  Schedule schedule = lowered("gpipe", 1, 1);
  ASSERT_EQ(to_text(schedule), "rank 0: F0 B0 NORM_UNITS TIE NORM STEP\n");
  std::swap(schedule.ranks[0][3], schedule.ranks[0][4]);
  EXPECT_EQ(validate(schedule).problems, Problems{"rank 0: NORM stands before TIE"});
  schedule = lower(forward_only(make_schedule({.name = "gpipe", .ranks = 1, .microbatches = 1})), 1);
  ASSERT_EQ(to_text(schedule), "rank 0: F0\n");
  EXPECT_EQ(validate(schedule).problems, Problems{});
}

TEST(Validate, SaysWhetherSumsComeInOrder) {
  Schedule schedule = make_schedule({.name = "zb_h1", .ranks = 1, .microbatches = 2});
  ASSERT_EQ(to_text(schedule), "rank 0: F0 I0 W0 F1 I1 W1\n");
  EXPECT_TRUE(validate(lower(schedule, 1)).sums_in_order);
  auto& ops = schedule.ranks[0];
  ops = {ops[0], ops[3], ops[4], ops[1], ops[2], ops[5]};  // F0 F1 I1 I0 W0 W1
  EXPECT_FALSE(validate(lower(schedule, 1)).sums_in_order);
  EXPECT_EQ(validate(lower(schedule, 1)).problems, Problems{});
}

TEST(Validate, JoinsOnlyAnFWithAnotherB) {
  Schedule schedule = lowered("gpipe", 1, 2);
  ASSERT_EQ(to_text(schedule), "rank 0: F0 F1 B0 B1 NORM_UNITS TIE NORM STEP\n");
  auto& ops = schedule.ranks[0];
  ops[1].joins_next = true;
  EXPECT_EQ(validate(schedule).problems, Problems{});
  std::swap(ops[0], ops[1]);
  EXPECT_EQ(validate(schedule).problems,
            Problems{"rank 0: F s0 m1 is joined with what follows: only an F can be, and with a B"});
  ops[0].joins_next = false;
  ops[1].joins_next = true;
  EXPECT_EQ(validate(schedule).problems, Problems{"rank 0: F s0 m0 is joined with B s0 m0, which needs its result"});
}

TEST(Validate, HoldsMemoryToItsBound) {
  const Schedule schedule = lowered("1f1b", 4, 8);
  EXPECT_EQ(validate(schedule).peak_activations, (std::vector<int>{4, 3, 2, 1}));
  EXPECT_EQ(validate(schedule, {.limit = 4}).problems, Problems{});
  EXPECT_EQ(validate(schedule, {.limit = 3}).problems,
            Problems{"rank 0: F s0 m3 brings activation memory to 4, over the limit of 3"});
  // pipelines.md section 7a: H1 p4 m12 with W held needs 8, 7, 6, 5.
  const MemoryModel held{.forward = 2, .input = -1, .weight = -1};
  EXPECT_EQ(validate(lowered("zb_h1", 4, 12), {.memory = held, .limit = 8}).problems, Problems{});
  EXPECT_EQ(validate(lowered("zb_h1", 4, 12), {.memory = held, .limit = 6}).problems.size(), 2U);
}

TEST(Validate, WantsALoweredSchedule) {
  EXPECT_EQ(validate(make_schedule({.name = "gpipe", .ranks = 1, .microbatches = 1})).problems,
            Problems{"slots = 0, wanted at least 1; lower() the schedule first"});
}

}  // namespace
}  // namespace orthant::pipeline
