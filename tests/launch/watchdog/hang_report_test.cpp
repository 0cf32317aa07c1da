// SPDX-License-Identifier: Apache-2.0
// Small hangs by hand, and who is to blame for them.
#include <orthant/launch/watchdog/hang_report.hpp>

#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/collectives.hpp>

namespace orthant::launch {
namespace {

using Ranks = std::vector<int>;

/// A rank in step 8 whose time is up.
RankDump rank(int rank, int size = 4) {
  return {.rank = rank,
          .size = size,
          .has_expired = true,
          .phase = "step",
          .step = 8,
          .silent_s = 60,
          .timeout_s = 60,
          .silent_since = 1000.0 + rank,
          .host = "node",
          .pid = 100 + rank};
}

constexpr const char* kSum = "all_reduce sum of 4 fp64";

/// The rank is a member and has posted `posted` operations; the last one is open, or not.
void join(RankDump& dump, const DumpedGroup& group, std::int64_t posted, bool is_open, const std::string& what = kSum) {
  dump.groups.push_back({group.communicator, group.name, group.members, posted, is_open ? posted - 1 : posted});
  if (posted == 0) return;
  DumpedOperation last{.communicator = group.communicator, .sequence = posted - 1, .what = what, .bytes = 32};
  last.posted_s = 60.0 + static_cast<double>(posted);
  if (!is_open) last.completed_s = 60;
  dump.operations.push_back(last);
}

const DumpedGroup kStage{.communicator = 1, .name = "stage", .members = {0, 2, 3}};
const DumpedGroup kWorld{.communicator = 0, .name = "control", .members = {0, 1, 2, 3}};

DumpedGroup channel(int communicator, int source, int destination) {
  return {.communicator = communicator, .name = "activations", .members = {source, destination}};
}

bool says(const HangVerdict& verdict, const std::string& part) {
  return to_text(verdict).find(part) != std::string::npos;
}

TEST(HangReport, NamesTheRankThatLeftNoDump) {
  HangDumps dumps{.size = 4, .dumps = {rank(0), rank(1), rank(3)}, .damaged = {}};
  join(dumps.dumps[0], kStage, 18, true);
  join(dumps.dumps[2], kStage, 18, true);
  const auto verdict = judge(dumps);
  EXPECT_EQ(verdict.culprits, Ranks{2});
  EXPECT_EQ(verdict.without_dump, Ranks{2});
  EXPECT_EQ(to_text(verdict),
            "rank 2 is behind: ranks 0, 3 wait in all_reduce sum of 4 fp64, #17 on stage [0 2 3], for 78.0 s; rank 2 "
            "has no dump (stopped, dead, or its host is gone); phase step, step 8\n");
}

TEST(HangReport, FollowsAChainOfWaitsToItsEnd) {
  // 3 waits for 2, 2 for 1, and 1 for nobody: it sits in its compute.
  HangDumps dumps{.size = 4, .dumps = {rank(0), rank(1), rank(2), rank(3)}, .damaged = {}};
  const auto early = channel(4, 1, 2), late = channel(5, 2, 3);
  join(dumps.dumps[1], early, 6, false, "transfer of 9 bf16");
  join(dumps.dumps[2], early, 7, true, "transfer of 9 bf16");
  join(dumps.dumps[2], late, 6, false, "transfer of 9 bf16");
  join(dumps.dumps[3], late, 7, true, "transfer of 9 bf16");
  dumps.dumps[1].step = 7;
  const auto verdict = judge(dumps);
  EXPECT_EQ(verdict.culprits, Ranks{1});
  EXPECT_EQ(verdict.lines.front(),
            "rank 1 is behind: rank 2 waits in receive of 9 bf16, #6 on activations [1 2], for 67.0 s; rank 1 (phase "
            "step, step 7) waits for nobody, so it is stuck in compute, data or files; its last operation, send of 9 "
            "bf16, #5 on activations [1 2], ended 60.0 s before; phase step, step 8");
  EXPECT_TRUE(says(verdict, "\n  rank 3 waits for rank 2 in receive of 9 bf16, #6 on activations [2 3], for 67.0 s\n"));
}

TEST(HangReport, BlamesTheRankThatMostWaitForWhereAllWait) {
  // Rank 3 left one out on control, so it waits on the stage, where the others wait for it on control.
  HangDumps dumps{.size = 4, .dumps = {rank(0), rank(1), rank(2), rank(3)}, .damaged = {}};
  for (int r = 0; r < 3; ++r) join(dumps.dumps[static_cast<std::size_t>(r)], kWorld, 10, true);
  join(dumps.dumps[3], kWorld, 9, false);
  join(dumps.dumps[0], kStage, 5, false);
  join(dumps.dumps[2], kStage, 5, false);
  join(dumps.dumps[3], kStage, 6, true);
  const auto verdict = judge(dumps);
  EXPECT_EQ(verdict.culprits, Ranks{3});
  EXPECT_TRUE(
      says(verdict, "rank 3 is behind: ranks 0, 1, 2 wait in all_reduce sum of 4 fp64, #9 on control [0 1 2 3]"));
  EXPECT_TRUE(says(verdict, "rank 3 itself waits for ranks 0, 2 in all_reduce sum of 4 fp64, #5 on stage [0 2 3]"));
}

TEST(HangReport, NamesBothWhereTwoWaitForEachOther) {
  HangDumps dumps{.size = 3, .dumps = {rank(0, 3), rank(1, 3), rank(2, 3)}, .damaged = {}};
  const auto there = channel(4, 0, 1), back = channel(5, 1, 0), on = channel(6, 1, 2);
  join(dumps.dumps[0], there, 1, true, "transfer of 9 bf16");
  join(dumps.dumps[1], there, 0, false);
  join(dumps.dumps[1], back, 1, true, "transfer of 9 bf16");
  join(dumps.dumps[0], back, 0, false);
  join(dumps.dumps[2], on, 1, true, "transfer of 9 bf16");  // a victim, that nobody waits for
  join(dumps.dumps[1], on, 0, false);
  const auto verdict = judge(dumps);
  EXPECT_EQ(verdict.culprits, (Ranks{0, 1}));
  EXPECT_EQ(verdict.lines.front(), "ranks 0, 1 wait for each other; phase step, step 8");
  EXPECT_TRUE(says(verdict, "rank 0 waits for rank 1 in send of 9 bf16, #0 on activations [0 1]"));
  EXPECT_TRUE(says(verdict, "rank 1 waits for rank 0 in send of 9 bf16, #0 on activations [1 0]"));
  EXPECT_TRUE(says(verdict, "rank 0 was the first to fall silent"));
}

TEST(HangReport, NamesCallsThatDoNotMatch) {
  HangDumps dumps{.size = 4, .dumps = {rank(0), rank(1), rank(2), rank(3)}, .damaged = {}};
  for (auto& dump : dumps.dumps) join(dump, kWorld, 8, true, dump.rank == 1 ? "all_gather of 4 fp64" : kSum);
  const auto verdict = judge(dumps);
  EXPECT_EQ(verdict.culprits, Ranks{1});
  EXPECT_EQ(verdict.lines.front(),
            "mismatch at #7 on control [0 1 2 3]: rank 1 called all_gather of 4 fp64, ranks 0, 2, 3 called all_reduce "
            "sum of 4 fp64; phase step, step 8");
  EXPECT_EQ(to_json(verdict)["mismatches"][0]["calls"]["all_gather of 4 fp64"], (Ranks{1}));
}

TEST(HangReport, BlamesNobodyAloneWhereTheCallsOfTwoDoNotMatch) {
  HangDumps dumps{.size = 2, .dumps = {rank(0, 2), rank(1, 2)}, .damaged = {}};
  for (auto& dump : dumps.dumps)
    join(dump, channel(3, 0, 1), 1, true, dump.rank == 0 ? "transfer of 9 bf16" : "transfer of 9 fp32");
  EXPECT_EQ(judge(dumps).culprits, (Ranks{0, 1}));
}

TEST(HangReport, ARankOfTheSameNameInAnotherGroupIsNotWaitedFor) {
  // Two communicators of one name: [0 1] hangs, [2 3] does not.
  HangDumps dumps{.size = 4, .dumps = {rank(0), rank(1), rank(2), rank(3)}, .damaged = {}};
  const DumpedGroup one{.communicator = 1, .name = "tp", .members = {0, 1}};
  const DumpedGroup two{.communicator = 2, .name = "tp", .members = {2, 3}};
  join(dumps.dumps[0], one, 5, true);
  join(dumps.dumps[1], one, 4, false);
  join(dumps.dumps[2], two, 3, false);
  join(dumps.dumps[3], two, 3, false);
  const auto verdict = judge(dumps);
  EXPECT_EQ(verdict.culprits, Ranks{1});
  ASSERT_EQ(verdict.waits.size(), 1u);
  EXPECT_EQ(verdict.waits[0].missing, Ranks{1});
}

TEST(HangReport, ARankThatIsAliveIsToldFromAStoppedOne) {
  HangDumps dumps{.size = 2, .dumps = {rank(0, 2), rank(1, 2)}, .damaged = {}};
  const DumpedGroup both{.communicator = 0, .name = "control", .members = {0, 1}};
  join(dumps.dumps[0], both, 3, true);
  join(dumps.dumps[1], both, 2, false);
  dumps.dumps[1].has_expired = false;
  dumps.dumps[1].phase = "save";
  const auto verdict = judge(dumps);
  EXPECT_EQ(verdict.culprits, Ranks{1});
  EXPECT_TRUE(says(verdict, "rank 1 (phase save, step 8) waits for nobody, and its own time-out has not expired"));
}

TEST(HangReport, WithoutOpenOperationsTheSilentRanksAreNamed) {
  HangDumps dumps{.size = 2, .dumps = {rank(0, 2), rank(1, 2)}, .damaged = {}};
  dumps.dumps[1].has_expired = false;
  const auto verdict = judge(dumps);
  EXPECT_EQ(verdict.culprits, Ranks{0});
  EXPECT_TRUE(says(verdict, "rank 0 (phase step, step 8) waits for nobody, so it is stuck in compute, data or files"));
}

TEST(HangReport, WhereAllAreThereTheNetworkIsSuspected) {
  HangDumps dumps{.size = 4, .dumps = {rank(0), rank(1), rank(2), rank(3)}, .damaged = {}};
  for (auto& dump : dumps.dumps) join(dump, kWorld, 8, dump.rank != 2);
  const auto verdict = judge(dumps);
  EXPECT_TRUE(says(verdict, "no member is behind"));
  EXPECT_TRUE(says(verdict, "ranks 0, 1, 3 wait in all_reduce sum of 4 fp64, #7 on control [0 1 2 3]"));
}

TEST(HangReport, OneRankAloneBlamesNobody) {
  auto dump = rank(2);
  join(dump, kStage, 18, true);
  const auto verdict = judge_alone(dump);
  EXPECT_TRUE(verdict.culprits.empty());
  EXPECT_TRUE(says(verdict, "rank 2 waits in all_reduce sum of 4 fp64, #17 on stage [0 2 3], for 78.0 s; phase step"));
  EXPECT_TRUE(says(verdict, "is not known"));
}

TEST(HangReport, NamesNoMoreThanAPersonReads) {
  HangDumps dumps{.size = 1000, .dumps = {}, .damaged = {}};
  DumpedGroup all{.communicator = 0, .name = "control", .members = Ranks(1000)};
  for (int r = 0; r < 1000; ++r) all.members[static_cast<std::size_t>(r)] = r;
  for (int r = 0; r < 999; ++r) {
    dumps.dumps.push_back(rank(r, 1000));
    join(dumps.dumps.back(), all, 5, true);
  }
  const auto verdict = judge(dumps);
  EXPECT_EQ(verdict.culprits, Ranks{999});
  EXPECT_LT(to_text(verdict).size(), 600u);
  EXPECT_TRUE(says(verdict, "13, 14, 15, … 999 in all wait in"));
}

class HangFolderTest : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(path_); }
  void put(const std::string& name, const std::string& text) const { std::ofstream(path_ / name) << text; }
  std::filesystem::path path_ = testing::TempDir() + fmt::format("hang-{}-{}", ::getpid(), [] {
                                  return testing::UnitTest::GetInstance()->current_test_info()->name();
                                }());
};

TEST_F(HangFolderTest, ReadsBackWhatWasWritten) {
  auto dump = rank(2);
  dump.host = "h\xff\"";  // no UTF-8
  join(dump, kStage, 18, true);
  join(dump, kWorld, 4, false);
  dump.operations.back().has_failed = true;
  const HangFolder folder(path_);
  folder.write(dump);
  const auto dumps = folder.read();
  ASSERT_EQ(dumps.dumps.size(), 1u);
  const auto& read = dumps.dumps.front();
  EXPECT_EQ(dumps.size, 4);
  EXPECT_EQ(read.rank, 2);
  EXPECT_EQ(read.phase, "step");
  EXPECT_EQ(read.step, 8);
  EXPECT_EQ(read.pid, 102);
  EXPECT_EQ(read.silent_since, 1002.0);
  ASSERT_NE(read.find_group(1), nullptr);
  EXPECT_EQ(read.find_group(1)->members, kStage.members);
  EXPECT_EQ(read.find_group(1)->posted, 18);
  EXPECT_EQ(read.find_group(1)->completed, 17);
  ASSERT_EQ(read.operations.size(), 2u);
  EXPECT_EQ(read.operations[0].what, kSum);
  EXPECT_EQ(read.operations[0].sequence, 17);
  EXPECT_FALSE(read.operations[0].completed_s);
  EXPECT_EQ(read.operations[1].completed_s, 60.0);
  EXPECT_TRUE(read.operations[1].has_failed);
}

TEST_F(HangFolderTest, GoesOnWithoutDamagedFiles) {
  const HangFolder folder(path_);
  for (const int r : {0, 3}) {
    auto dump = rank(r, 8);
    join(dump, {.communicator = 0, .name = "control", .members = {0, 1, 2, 3, 4, 5, 6, 7}}, 8, true);
    folder.write(dump);
  }
  const auto whole = to_json_text(rank(1, 8));
  put("rank1.json", whole.substr(0, whole.size() / 2));
  put("rank2.json", "");
  put("rank4.json", whole);  // of another rank
  put("rank5.json", "[[[[1]]]]");
  std::filesystem::create_symlink(path_ / "rank0.json", path_ / "rank6.json");
  put("rank07.json", whole);
  put("rank-1.json", whole);
  put("rank9.json.tmp-abcdef", whole);
  const auto dumps = folder.read();
  EXPECT_EQ(dumps.dumps.size(), 2u);
  EXPECT_EQ(dumps.damaged.size(), 5u);
  const auto verdict = judge(dumps);
  EXPECT_EQ(verdict.without_dump, Ranks{7});
  EXPECT_EQ(verdict.culprits, (Ranks{1, 2, 4, 5, 6, 7}));
  EXPECT_TRUE(says(verdict, "the dump of rank 4 is damaged: holds the dump of rank 1"));
  EXPECT_TRUE(says(verdict, "rank 2 left a damaged dump"));
}

TEST_F(HangFolderTest, RefusesNumbersThatCannotBe) {
  auto dump = rank(0);
  join(dump, kStage, 18, true);
  const auto json = nlohmann::json::parse(to_json_text(dump));
  const auto refused = [&](const char* pointer, const nlohmann::json& value) {
    auto changed = json;
    changed[nlohmann::json::json_pointer(pointer)] = value;
    return !parse_dump(changed.dump());
  };
  EXPECT_FALSE(refused("/step", 9)) << "the check itself";
  EXPECT_TRUE(refused("/format", 2));
  EXPECT_TRUE(refused("/size", 2'000'000'000));
  EXPECT_TRUE(refused("/rank", 4));
  EXPECT_TRUE(refused("/rank", -1));
  EXPECT_TRUE(refused("/step", "eight"));
  EXPECT_TRUE(refused("/groups/0/members/1", 4));
  EXPECT_TRUE(refused("/open/0/communicator", 9));
  EXPECT_TRUE(refused("/open", nullptr));
}

TEST_F(HangFolderTest, OneRankSpeaksForAll) {
  const HangFolder folder(path_);
  folder.write(rank(0));
  EXPECT_FALSE(folder.has_verdict());
  EXPECT_TRUE(folder.claim_verdict("rank 2 is behind\n"));
  EXPECT_TRUE(folder.has_verdict());
  EXPECT_FALSE(folder.claim_verdict("rank 3 is behind\n"));
  std::string line;
  std::getline(std::ifstream(path_ / "verdict.txt") >> std::ws, line);
  EXPECT_EQ(line, "rank 2 is behind");
}

TEST_F(HangFolderTest, IsMadeByTheFirstDump) {
  const HangFolder folder(path_);
  EXPECT_FALSE(std::filesystem::exists(path_));
  folder.write(rank(0));
  EXPECT_EQ(std::filesystem::status(path_).permissions(), std::filesystem::perms::owner_all);
  EXPECT_TRUE(std::filesystem::exists(path_ / "rank0.json"));
}

}  // namespace
}  // namespace orthant::launch
