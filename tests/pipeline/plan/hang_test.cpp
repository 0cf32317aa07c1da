// SPDX-License-Identifier: Apache-2.0
// The validator's two verdicts against an interpreter of each kind, over thousands of plans that keep data and order.
#include <orthant/pipeline/plan/hang.hpp>

#include <gtest/gtest.h>

#include <orthant/pipeline/plan/validate.hpp>
#include <orthant/tests/pipeline/plan/in_line_interpreter.hpp>
#include <orthant/tests/pipeline/plan/random_swaps.hpp>
#include <orthant/tests/pipeline/plan/stream_interpreter.hpp>

namespace orthant::pipeline {
namespace {

using tests::InLineInterpreter;
using tests::StreamInterpreter;

TEST(Hang, BothVerdictsAgreeWithAnInterpreterOfEachKind) {
  tests::RandomSwaps plans(3);
  int safe = 0, only_in_line = 0, on_streams = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    const Schedule schedule = plans.next(4, 6);
    const Proof proof = validate(schedule);
    const bool streams_end = StreamInterpreter(schedule, plans.random()).ends();
    const bool in_line_ends = InLineInterpreter(schedule).ends();
    ASSERT_EQ(proof.hang_on_streams.empty(), streams_end) << to_text(schedule) << proof.hang_on_streams;
    ASSERT_EQ(proof.hang_in_line.empty(), in_line_ends) << to_text(schedule) << proof.hang_in_line;
    ASSERT_TRUE(streams_end || !in_line_ends);
    ++(in_line_ends ? safe : streams_end ? only_in_line : on_streams);
  }
  EXPECT_GT(safe, 1000);
  EXPECT_GT(only_in_line, 300);
  EXPECT_GT(on_streams, 100);
}

/// Rank 0 wants the gradient of m0 before it sends the activation of m1, which rank 1 wants first.
Schedule two_ranks_in_a_knot() {
  Schedule schedule = lower(make_schedule({.name = "gpipe", .ranks = 2, .microbatches = 2}), 1);
  const auto op = [](OpKind kind, int stage, int m) { return Op{kind, StageId{stage}, MicrobatchId{m}}; };
  schedule.ranks[0] = {op(OpKind::forward, 0, 0),          op(OpKind::send_activation, 0, 0),
                       op(OpKind::receive_gradient, 0, 0), op(OpKind::backward, 0, 0),
                       op(OpKind::forward, 0, 1),          op(OpKind::send_activation, 0, 1),
                       op(OpKind::receive_gradient, 0, 1), op(OpKind::backward, 0, 1)};
  return schedule;
}

TEST(Hang, NamesWhereItStands) {
  const Schedule schedule = two_ranks_in_a_knot();
  ASSERT_EQ(to_text(schedule).substr(to_text(schedule).find("rank 1")),
            "rank 1: RECV a0 F0 RECV a1 F1 B0 SEND g0 B1 SEND g1 NORM_UNITS TIE NORM STEP\n");
  EXPECT_EQ(hang_in_line(schedule), "rank 0 at RECV g s0 m0 (operation 2); rank 1 at RECV a s1 m1 (operation 2)");
  const std::vector<std::string> problems = check_joint_graph(plan_on_streams(schedule));
  ASSERT_EQ(problems.size(), 1U);
  for (const char* task : {"rank 0: F s0 m1", "rank 1: F s1 m1", "rank 1: B s1 m0", "SEND g s1 m0", "SEND a s0 m1"})
    EXPECT_NE(problems[0].find(task), std::string::npos) << task << " in " << problems[0];
}

TEST(Hang, OnStreamsMayBeSafeWhereInLineIsNot) {
  Schedule schedule = lower(make_schedule({.name = "zb_h1", .ranks = 2, .microbatches = 2}), 1);
  ASSERT_EQ(to_text(schedule).substr(0, 35), "rank 0: F0 SEND a0 F1 SEND a1 RECV ");
  std::swap(schedule.ranks[0][3], schedule.ranks[0][4]);  // the gradient before SEND a1
  EXPECT_EQ(check_joint_graph(plan_on_streams(schedule)), std::vector<std::string>{});
  EXPECT_EQ(hang_in_line(schedule), "rank 0 at RECV g s0 m0 (operation 3); rank 1 at RECV a s1 m1 (operation 2)");
}

TEST(Hang, CountsSlots) {
  // Rank 1 reads the second message first: with one slot it never comes.
  Schedule schedule = make_schedule({.name = "gpipe", .ranks = 2, .microbatches = 2});
  std::swap(schedule.ranks[1][0], schedule.ranks[1][1]);
  Schedule lowered = lower(schedule, 2);
  EXPECT_EQ(check_joint_graph(plan_on_streams(lowered)), std::vector<std::string>{});
  EXPECT_EQ(hang_in_line(lowered), "");
  lowered.slots = 1;
  EXPECT_NE(check_joint_graph(plan_on_streams(lowered)), std::vector<std::string>{});
  EXPECT_EQ(hang_in_line(lowered), "rank 0 at SEND a s0 m1 (operation 3); rank 1 at RECV a s1 m1 (operation 1)");
}

}  // namespace
}  // namespace orthant::pipeline
