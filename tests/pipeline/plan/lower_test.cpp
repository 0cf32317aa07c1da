// SPDX-License-Identifier: Apache-2.0
// Lowering: what is added where, and how many slots it takes.
#include <orthant/pipeline/plan/lower.hpp>

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/pipeline/cost/timing.hpp>
#include <orthant/pipeline/plan/validate.hpp>
#include <orthant/pipeline/schedule/message.hpp>
#include <orthant/tests/pipeline/plan/every_schedule.hpp>
#include <orthant/tests/pipeline/plan/in_line_interpreter.hpp>

namespace orthant::pipeline {
namespace {

std::string error_of(const Schedule& schedule, int slots) {
  try {
    lower(schedule, slots);
    return "accepted";
  } catch (const InternalError& error) {
    return error.what();
  }
}

class EverySchedule : public testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Pipeline, EverySchedule, tests::schedule_names_of_tests(), tests::test_name);

TEST_P(EverySchedule, KeepsItsComputeOrderAndItsPairs) {
  for (const int ranks : {1, 2, 4}) {
    tests::for_chunks(GetParam(), ranks, 8, [&](const ScheduleRequest& request) {
      const Schedule schedule = make_schedule(request);
      for (int extra = 0; extra <= 2; ++extra) {
        Schedule lowered = lower(schedule, slots_for(schedule) + extra);
        EXPECT_EQ(lowered.slots, slots_for(schedule) + extra);
        for (auto& ops : lowered.ranks) {
          for (std::size_t i = 0; i < ops.size(); ++i) {
            if (ops[i].joins_next) {
              EXPECT_EQ(ops.at(i + 1).kind, OpKind::backward) << tests::text_of(request);
            }
          }
          std::erase_if(ops, [](const Op& op) { return !is_compute(op.kind); });
        }
        EXPECT_EQ(lowered.ranks, schedule.ranks) << tests::text_of(request);
      }
    });
  }
}

TEST_P(EverySchedule, SendsNothingOnOneRank) {
  tests::for_chunks(GetParam(), 1, 5, [&](const ScheduleRequest& request) {
    const Schedule lowered = lower(make_schedule(request), 1);
    for (const Op& op : lowered.ranks[0])
      EXPECT_FALSE(is_send(op.kind) || is_receive(op.kind)) << tests::text_of(request) << " " << to_text(op);
  });
}

/// Whether every channel's messages are read in the order in which they arrive.
bool reads_in_order(const Schedule& schedule) {
  std::map<ChannelKey, std::vector<Op>> received, read;
  for (const auto& ops : lower(schedule, schedule.stages * schedule.microbatches).ranks) {
    for (const Op& op : ops) {
      if (is_receive(op.kind)) received[channel_of(schedule, op)].push_back(op);
      if (const auto receive = receive_before(schedule, op)) read[channel_of(schedule, *receive)].push_back(*receive);
    }
  }
  return received == read;
}

TEST_P(EverySchedule, NeedsOneSlotIfItReadsInOrder) {
  for (const int ranks : {2, 3, 4, 8}) {
    for (const int microbatches : {ranks, 2 * ranks, 3 * ranks}) {
      tests::for_chunks(GetParam(), ranks, microbatches, [&](const ScheduleRequest& request) {
        const Schedule schedule = make_schedule(request);
        EXPECT_EQ(slots_for(schedule) == 1, reads_in_order(schedule)) << tests::text_of(request);
      });
    }
  }
}

TEST(Lower, NeedsFewSlots) {
  struct Case {
    const char* name;
    int most;
  };
  for (const auto& [name, most] : {Case{"1f1b", 1},
                                   {"zb_h1", 1},
                                   {"zb_h2", 1},
                                   {"zb_v", 1},
                                   {"dualpipe_v", 1},
                                   {"interleaved", 2},
                                   {"interleaved_zb", 4}}) {
    const ScheduleRequest request{.name = name, .ranks = 8, .microbatches = 24};
    EXPECT_LE(broken_rule(request).empty() ? slots_for(make_schedule(request)) : 0, most) << name;
  }
}

TEST(Lower, SendsInTheOrderOfAClock) {
  EXPECT_EQ(to_text(lower(make_schedule({.name = "zb_h1", .ranks = 2, .microbatches = 2}), 1)),
            "rank 0: F0 SEND a0 F1 SEND a1 RECV g0 I0 W0 RECV g1 I1 W1 NORM_UNITS TIE NORM STEP\n"
            "rank 1: RECV a0 F0 RECV a1 I0 SEND g0 F1 I1 SEND g1 W0 W1 NORM_UNITS TIE NORM STEP\n");
}

TEST(Lower, TakesNoTimeInLine) {
  for (const std::string_view name : {"gpipe", "1f1b", "zb_h1"}) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int microbatches = 1; microbatches <= 12; ++microbatches) {
        const ScheduleRequest request{.name = std::string(name), .ranks = ranks, .microbatches = microbatches};
        const Schedule schedule = make_schedule(request);
        EXPECT_EQ(tests::InLineInterpreter(lower(schedule, 1)).makespan(), time_schedule(schedule, {}).makespan)
            << tests::text_of(request);
      }
    }
  }
}

const auto op = [](OpKind kind, int stage, int m) { return Op{kind, StageId{stage}, MicrobatchId{m}}; };

TEST(Lower, HandsOverAtTheTurnOfAV) {
  Schedule schedule{.name = "v", .stages = 4, .microbatches = 1, .placement = v_placement(2), .ranks = {}};
  schedule.ranks = {
      {op(OpKind::forward, 0, 0), op(OpKind::forward, 3, 0), op(OpKind::backward, 3, 0), op(OpKind::backward, 0, 0)},
      {op(OpKind::forward, 1, 0), op(OpKind::forward, 2, 0), op(OpKind::backward, 2, 0), op(OpKind::backward, 1, 0)}};
  const Schedule lowered = lower(schedule, 1);
  EXPECT_EQ(to_text(lowered),
            "rank 0: F0.0 SEND a0.0 RECV a3.0 F3.0 B3.0 SEND g3.0 RECV g0.0 B0.0 NORM_UNITS TIE NORM STEP\n"
            "rank 1: RECV a1.0 F1.0 F2.0 SEND a2.0 RECV g2.0 B2.0 B1.0 SEND g1.0 NORM_UNITS TIE NORM STEP\n");
  EXPECT_EQ(validate(lowered).problems, std::vector<std::string>{});
}

TEST(Lower, GivesAPairItsInputsBeforeAndItsOutputsAfter) {
  Schedule schedule = make_schedule({.name = "1f1b", .ranks = 3, .microbatches = 3});
  auto& ops = schedule.ranks[1];
  ASSERT_EQ(to_text(schedule).substr(26, 26), "rank 1: F0 F1 B0 F2 B1 B2\n");
  ops[1].joins_next = true;  // F1 with B0
  const std::string text = to_text(lower(schedule, 2)), list = text.substr(text.find("rank 1"));
  const auto at = [&](const char* word) { return list.find(word); };
  ASSERT_NE(at("(F1 & B0)"), std::string::npos) << text;
  for (const char* input : {"RECV a1", "RECV g0"}) EXPECT_LT(at(input), at("(F1 & B0)")) << text;
  for (const char* output : {"SEND a1", "SEND g0"}) EXPECT_GT(at(output), at("(F1 & B0)")) << text;
}

TEST(Lower, HoldsBackAMessageWhoseReceiverHasNoFreeSlot) {
  Schedule schedule = make_schedule({.name = "gpipe", .ranks = 2, .microbatches = 3});
  schedule.ranks[1] = make_schedule({.name = "1f1b", .ranks = 2, .microbatches = 3}).ranks[1];
  EXPECT_EQ(to_text(lower(schedule, 1)).substr(0, 39), "rank 0: F0 SEND a0 F1 SEND a1 F2 RECV g");
  EXPECT_EQ(to_text(lower(schedule, 2)).substr(0, 39), "rank 0: F0 SEND a0 F1 SEND a1 F2 SEND a");
}

TEST(Lower, NeedsSlotsForReadersInAnotherOrder) {
  for (int microbatches = 1; microbatches <= 5; ++microbatches) {
    Schedule schedule = make_schedule({.name = "gpipe", .ranks = 2, .microbatches = microbatches});
    std::reverse(schedule.ranks[1].begin(), schedule.ranks[1].begin() + microbatches);
    EXPECT_EQ(slots_for(schedule), microbatches);
    if (microbatches > 1) {
      EXPECT_NE(error_of(schedule, microbatches - 1), "accepted");
    }
  }
}

TEST(Lower, RefusesAnOrderThatCannotRun) {
  Schedule schedule = make_schedule({.name = "gpipe", .ranks = 2, .microbatches = 2});
  std::swap(schedule.ranks[0][1], schedule.ranks[0][2]);  // F0 B0 F1 B1 over all of rank 1's forwards first
  EXPECT_EQ(error_of(schedule, 1),
            "schedule gpipe cannot be lowered with 1 slot(s); rank 0 at B s0 m0; rank 1 at F s1 m1");
  EXPECT_THROW(slots_for(schedule), InternalError);
}

TEST(Lower, RefusesWhatThePipelineDoesNotHave) {
  Schedule schedule = make_schedule({.name = "gpipe", .ranks = 2, .microbatches = 2});
  schedule.ranks[0][1].microbatch.value = 7;
  EXPECT_EQ(error_of(schedule, 1), "schedule gpipe: F s0 m7 is no computation of 2 stages and 2 micro-batches");
}

}  // namespace
}  // namespace orthant::pipeline
