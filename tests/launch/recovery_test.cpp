// SPDX-License-Identifier: Apache-2.0
// The pure parts of going on after a fault: what makes a run another run, what all ranks must have alike, where the
// time of several starts went, which fault strikes.
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/launch/fault_injector.hpp>
#include <orthant/launch/goodput.hpp>
#include <orthant/launch/resume.hpp>
#include <orthant/launch/startup.hpp>
#include <orthant/tests/core/base/scratch_folder.hpp>
#include <orthant/tests/harness/run_ranks.hpp>

namespace orthant::launch {
namespace {

TEST(ChangedKeys, AreThoseThatTheNumbersDependOn) {
  const std::string was =
      "[train]\nseed = 1\nsteps = 10\nmicro_batch = 1\n[mesh]\ntp = 1\n[lr_schedule]\nkind = \"cosine\"\n";
  const std::string is =
      "[train]\nseed = 2\nsteps = 20\nmicro_batch = 2\n[mesh]\ntp = 2\n[lr_schedule]\nkind = \"cosine\"\n";
  EXPECT_EQ(changed_keys(was, was), std::vector<std::string>{});
  EXPECT_EQ(changed_keys(was, is), (std::vector<std::string>{"train.seed: 2, was 1", "train.steps: 20, was 10"}));
  EXPECT_EQ(changed_keys("[model]\nhidden = 8\n", ""), std::vector<std::string>{"model.hidden: absent, was 8"});
}

TEST(ChangedKeys, LeaveOutTheNumberOfStepsWhereNoRateDependsOnIt) {
  const auto config = [](int steps) {
    return fmt::format("[train]\nsteps = {}\n[lr_schedule]\nkind = \"constant\"\n", steps);
  };
  EXPECT_EQ(changed_keys(config(10), config(20)), std::vector<std::string>{});
}

TEST(RequireAlike, NamesKeyValuesAndRanks) {
  tests::run_ranks(4, [](comm::Fabric& fabric) {
    const auto everyone = fabric.make_collectives("start", fabric.all_ranks());
    Facts facts{{"train.seed", fabric.rank() == 2 ? "2" : "1"}, {"mesh.tp", "4"}};
    if (fabric.rank() == 3) facts.emplace("only.here", "x");
    try {
      require_alike(*everyone, facts, std::chrono::seconds(10));
      FAIL() << "alike?";
    } catch (const ConfigError& error) {
      EXPECT_STREQ(
          error.what(),
          "the ranks do not have the same:\n  only.here: absent on ranks 0 1 2; x on ranks 3\n  train.seed: 1 on "
          "ranks 0 1 3; 2 on ranks 2");
    }
    require_alike(*everyone, {{"train.seed", "1"}}, std::chrono::seconds(10));
  });
}

TEST(Goodput, CountsWhatWasNotDoneAgain) {
  // Ten steps in 20 s, dead with the checkpoint of step 6; noticed after 5 s, started again 10 s later.
  const std::vector<Attempt> attempts{{.begun = 100,
                                       .last_seen = 125,
                                       .noticed = 130,
                                       .start_s = 3,
                                       .load_s = 1,
                                       .training_s = 20,
                                       .stall_s = 1,
                                       .first_step = 0,
                                       .last_step = 10},
                                      {.begun = 140,
                                       .last_seen = 160,
                                       .start_s = 2,
                                       .load_s = 0.5,
                                       .training_s = 16,
                                       .stall_s = 0,
                                       .first_step = 6,
                                       .last_step = 14}};
  const auto sum = summarise(attempts, 160);
  EXPECT_EQ(sum.starts, 2);
  EXPECT_DOUBLE_EQ(sum.wall_s, 60);
  EXPECT_DOUBLE_EQ(sum.lost_s, 8);
  EXPECT_DOUBLE_EQ(sum.training_s, 28);
  EXPECT_DOUBLE_EQ(sum.detect_s, 5);
  EXPECT_DOUBLE_EQ(sum.restart_s, 10);
  EXPECT_DOUBLE_EQ(sum.start_s, 5);
  EXPECT_DOUBLE_EQ(sum.load_s, 1.5);
  EXPECT_DOUBLE_EQ(sum.ratio(), 28.0 / 60);
  EXPECT_EQ(summarise({}, 5).ratio(), 0);
}

TEST(Goodput, AClockThatWasSetBackBetweenTwoStartsTakesNothingAway) {
  const auto sum = summarise(
      {{.begun = 1000, .last_seen = 1010, .training_s = 8, .last_step = 4}, {.begun = 500, .training_s = 4}}, 505);
  EXPECT_DOUBLE_EQ(sum.wall_s, 15);
  EXPECT_DOUBLE_EQ(sum.restart_s, 0);
}

TEST(Goodput, ReadsALedgerWithDamagedLines) {
  const orthant::testing::ScratchFolder folder;
  {
    Ledger first(folder / "ledger");
    first.ready(0, 0.5);
    first.progress(4, 8, 0);
  }
  std::ofstream(folder / "ledger", std::ios::app) << "\n{\"event\":\"progr";
  Ledger second(folder / "ledger");
  second.ready(2, 0.25);
  second.progress(6, 8, 0.5);
  const auto sum = second.finish();
  EXPECT_EQ(sum.starts, 2);
  EXPECT_DOUBLE_EQ(sum.lost_s, 4);
  EXPECT_DOUBLE_EQ(sum.training_s, 12);
  EXPECT_DOUBLE_EQ(sum.load_s, 0.75);
  EXPECT_DOUBLE_EQ(sum.stall_s, 0.5);
}

TEST(Fault, StrikesOneRankInItsSteps) {
  const FaultConfig twice{.kind = "nan", .rank = 1, .step = 5, .times = 2};
  const FaultConfig always{.kind = "nan", .rank = 1, .step = 5, .times = 0};
  for (std::int64_t step = 1; step < 20; ++step) {
    EXPECT_FALSE(strikes(twice, 0, step));
    EXPECT_EQ(strikes(twice, 1, step), step == 5 || step == 6);
    EXPECT_EQ(strikes(always, 1, step), step >= 5);
    EXPECT_EQ(poison(twice, 1, step) != 0, step == 5 || step == 6);
  }
  EXPECT_EQ(poison({.kind = "throw", .rank = 1, .step = 5}, 1, 5), 0);
}

TEST(Fault, IsChosenAlikeByTheSeedAndOnlyWhereItIsLeftOpen) {
  FaultConfig a{.kind = "kill", .rank = -1, .step = 0, .seed = 7},
      b = a, fixed{.kind = "kill", .rank = 3, .step = 9, .seed = 7};
  choose_fault(a, 8, 100);
  choose_fault(b, 8, 100);
  choose_fault(fixed, 8, 100);
  EXPECT_EQ(std::pair(a.rank, a.step), std::pair(b.rank, b.step));
  EXPECT_TRUE(a.rank >= 0 && a.rank < 8 && a.step >= 1 && a.step <= 100);
  EXPECT_EQ(std::pair(fixed.rank, fixed.step), std::pair(3, std::int64_t{9}));
}

}  // namespace
}  // namespace orthant::launch
