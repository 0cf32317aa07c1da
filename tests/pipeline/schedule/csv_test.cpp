// SPDX-License-Identifier: Apache-2.0
// Files as PyTorch writes them, written by hand; every schedule there and back; and what is wrong with a file told with
// its place.
#include <orthant/pipeline/schedule/csv.hpp>

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/pipeline/generate/catalog.hpp>
#include <orthant/pipeline/plan/lower.hpp>
#include <orthant/pipeline/plan/validate.hpp>

namespace orthant::pipeline {
namespace {

std::string why_not(std::string_view text) {
  try {
    read_csv(text, "f");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

void expect_starts(const std::string& text, const std::string& start) {
  EXPECT_EQ(text.substr(0, start.size()), start) << text;
}

/// Operations with their joins, which == leaves out.
void expect_same_ranks(const Schedule& a, const Schedule& b) {
  EXPECT_EQ(a.ranks, b.ranks);
  EXPECT_EQ(to_text(a), to_text(b));
}

TEST(Csv, ReadsComputationsAndPassesOverIdleCells) {
  const auto [schedule, notes] = read_csv("0F0,0F1,,0B0,,0B1\r\n,1F0,1B0,1F1, 1I1,1W1\r\n\n", "two");
  EXPECT_EQ(schedule.name, "two");
  EXPECT_EQ(schedule.stages, 2);
  EXPECT_EQ(schedule.copies, 1);
  EXPECT_EQ(schedule.microbatches, 2);
  EXPECT_EQ(schedule.slots, 0);
  EXPECT_EQ(schedule.placement, (Placement{0, 1}));
  EXPECT_EQ(to_text(schedule), "rank 0: F0 F1 B0 B1\nrank 1: F0 B0 F1 I1 W1\n");
  EXPECT_TRUE(notes.empty());
}

TEST(Csv, ReadsPairs) {
  const auto schedule = read_csv("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1", "pair").schedule;
  EXPECT_EQ(schedule.placement, (Placement{0, 0}));
  EXPECT_EQ(to_text(schedule), "rank 0: F0.0 F1.0 (F0.1 & B1.0) B0.0 F1.1 B1.1 B0.1\n");
  EXPECT_EQ(write_csv(schedule), "0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1\n");
}

// What the package's lowering makes of 1F1B with full shards.
constexpr std::string_view kWithMessages =
    "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\n"
    "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD\n";

TEST(Csv, ReadsMessagesAsALoweredScheduleWithATail) {
  const auto [schedule, notes] = read_csv(kWithMessages, "two");
  EXPECT_EQ(schedule.slots, 1);
  EXPECT_EQ(to_text(schedule),
            "rank 0: F0 SEND a0 F1 SEND a1 RECV g0 B0 RECV g1 B1 NORM_UNITS TIE NORM STEP\n"
            "rank 1: RECV a0 F0 RECV a1 B0 SEND g0 F1 B1 SEND g1 NORM_UNITS TIE NORM STEP\n");
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("6 cells UNSHARD"), std::string::npos) << notes[0];
  EXPECT_TRUE(validate(schedule).problems.empty()) << validate(schedule).problems.front();
}

TEST(Csv, InfersTheLeastSlots) {
  // Both activations arrive before the first is read.
  const auto late = read_csv(
                        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                        "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n",
                        "late")
                        .schedule;
  EXPECT_EQ(late.slots, 2);
  // Slots are taken in turn: the one of the first message is still full when the third comes, though the second is
  // read.
  const auto crossed = read_csv(
                           "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0RECV_B1,0B1,0RECV_B0,0B0,0RECV_B2,0B2\n"
                           "1RECV_F0,1RECV_F1,1F1,1RECV_F2,1B1,1SEND_B1,1F0,1B0,1SEND_B0,1F2,1B2,1SEND_B2\n",
                           "crossed")
                           .schedule;
  EXPECT_EQ(crossed.slots, 3);
}

TEST(Csv, ThereAndBackAgainIsTheSame) {
  int tried = 0;
  for (const std::string_view name : schedule_names()) {
    for (int p = 1; p <= 4; ++p) {
      for (const int m : {1, p, 2 * p + 1, 3 * p}) {
        const ScheduleRequest request{.name = std::string(name), .ranks = p, .microbatches = m};
        if (!broken_rule(request).empty()) continue;
        const Schedule schedule = make_schedule(request);
        if (schedule.copies > 1) continue;
        SCOPED_TRACE(testing::Message() << name << " p" << p << " m" << m);
        const Schedule back = read_csv(write_csv(schedule), schedule.name).schedule;
        EXPECT_EQ(back.stages, schedule.stages);
        EXPECT_EQ(back.microbatches, schedule.microbatches);
        EXPECT_EQ(back.placement, schedule.placement);
        EXPECT_EQ(back.slots, 0);
        expect_same_ranks(back, schedule);
        ++tried;
        if (schedule.ranks.size() == 1) continue;  // without messages: the same file
        const Schedule lowered = lower(schedule, slots_for(schedule));
        const Schedule lowered_back = read_csv(write_csv(lowered), schedule.name).schedule;
        expect_same_ranks(lowered_back, lowered);
        EXPECT_LE(lowered_back.slots, lowered.slots);
        EXPECT_TRUE(validate(lowered_back).problems.empty());
      }
    }
  }
  EXPECT_GT(tried, 20);
}

TEST(Csv, CannotHoldTwoCopies) {
  Schedule two = make_schedule({.name = "1f1b", .ranks = 2, .microbatches = 2});
  two.copies = 2;
  EXPECT_THROW(write_csv(two), ConfigError);
}

TEST(Csv, MatchesCellsAsAWhole) {
  const std::string place = "f: row 1 (rank 0), column 2: ";
  expect_starts(why_not("0F0,0B0x"), place + "\"0B0x\": does not end with a micro-batch; a cell is <stage><type>");
  expect_starts(why_not("0F0,0B"), place + "\"0B\": does not end with a micro-batch");
  expect_starts(why_not("0F0,B0"), place + "\"B0\": does not begin with a stage");
  expect_starts(why_not("0F0,-1B0"), place + "\"-1B0\": does not begin with a stage");
  expect_starts(why_not("0F0,0 B0"), place + "\"0 B0\": has the unknown type \" B\"");
  expect_starts(why_not("0F0,0Q0"), place + "\"0Q0\": has the unknown type \"Q\"");
  expect_starts(why_not("0F0,0F99999999999"), place + "\"0F99999999999\": does not end with a micro-batch");
  expect_starts(why_not("0F0,(0F1;0B0)OVERLAP_F_BX"), place + "\"(0F1;0B0)OVERLAP_F_BX\": is no operation");
  expect_starts(why_not("0F0,(0F1;0B0;0W0)OVERLAP_F_B"), place + "\"(0F1;0B0;0W0)OVERLAP_F_B\": holds 3 operations");
  expect_starts(why_not("0F0,(0B0;0F1)OVERLAP_F_B"),
                place + "\"(0B0;0F1)OVERLAP_F_B\": an overlapped pair is an F and a B, in this order");
  expect_starts(why_not("0F0,(0F1;0B0"), place + "\"(0F1;0B0\": is no operation");
  EXPECT_EQ(why_not("\n \n"), "f: the file is empty; wanted a row of cells for each rank");
}

TEST(Csv, KnowsTheOlderDialect) {
  expect_starts(why_not("2F0,2BW0"), "f: row 1 (rank 0), column 2: \"2BW0\": the file is in an older dialect");
  expect_starts(why_not("0F0,0B0,0W0"),
                "f: row 1 (rank 0), column 3: \"0W0\": is a W, but the file has no I: the file is in an older dialect");
}

TEST(Csv, CountsEveryOperation) {
  expect_starts(why_not("0F0,0B0,0F0"), "f: row 1 (rank 0), column 3: \"0F0\": stands in row 1, column 1 already");
  EXPECT_EQ(why_not("0F0,0F1,0B0"), "f: B (or I and W) is missing: stage 0, micro-batch 1 of 2");
  EXPECT_EQ(why_not("0F0,0I0,0W0,0F1,0I1"), "f: W is missing: stage 0, micro-batch 1 of 2");
  EXPECT_EQ(why_not("0F0,0I0,0W0,0B1"), "f: F is missing: stage 0, micro-batch 1 of 2");
  EXPECT_EQ(why_not("0F0,0I0,0W0\n2F0,2B0"), "f: stage 1 is missing; there are cells up to stage 2");
  expect_starts(why_not("0F0,0I0,0B0,0W0"),
                "f: row 1 (rank 0), column 3: \"0B0\": B stands beside I or W (stage 0, micro-batch 0 of 1)");
  expect_starts(why_not("0B0,0F0"), "f: row 1 (rank 0), column 1: \"0B0\": stands before \"0F0\", which it needs");
  expect_starts(why_not("0F0,0W0,0I0"), "f: row 1 (rank 0), column 2: \"0W0\": stands before \"0I0\"");
  expect_starts(why_not("0F0,0B0\n0F1,0B1"), "f: row 2 (rank 1), column 1: \"0F1\": stage 0 is in row 1, too");
  EXPECT_EQ(why_not("0F0,0B0\n\n1F0,1B0"), "f: row 2 (rank 1) has no operation; each rank has a row with its stages");
}

TEST(Csv, ChecksMessages) {
  const auto with = [](std::string_view from, std::string_view to) {
    std::string text(kWithMessages);
    const auto at = text.find(from);
    EXPECT_NE(at, text.npos);
    return text.replace(at, from.size(), to);
  };
  EXPECT_EQ(why_not(with("0SEND_F1,", "")), "f: the message SEND a s0 m1 is missing");
  EXPECT_EQ(why_not(with("1RECV_F0,", "")), "f: the message RECV a s1 m0 is missing");
  expect_starts(why_not(with("0RECV_B1", "0SEND_B1")),
                "f: row 1 (rank 0), column 8: \"0SEND_B1\": no stage needs this message");
  expect_starts(why_not(with("0RECV_B1", "9SEND_F1")), "f: row 1 (rank 0), column 8: \"9SEND_F1\": no stage needs");
  expect_starts(why_not(with("1RESHARD\n", "1RESHARD,\n")),
                "f: row 2 (rank 1), column 12: \"\": an empty cell is idle time, which stands in files of computations "
                "only; this one has messages");
  std::string moved = with("0SEND_F1,", "");
  moved.insert(moved.size() - 1, ",0SEND_F1");
  expect_starts(why_not(moved), "f: row 2 (rank 1), column 12: \"0SEND_F1\": stage 0 is on rank 0");
}

TEST(Csv, TellsOfFilesThatAreNotThere) { EXPECT_THROW(read_csv_file("/nowhere/schedule.csv"), ConfigError); }

}  // namespace
}  // namespace orthant::pipeline
