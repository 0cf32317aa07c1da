// SPDX-License-Identifier: Apache-2.0
// Time-outs are short, and what is claimed of them is "not before" and "some time": the machine may be busy. What ends
// a process, or stops it, is tried on children.
#include <orthant/launch/watchdog/watchdog.hpp>

#include <atomic>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/agree.hpp>
#include <orthant/core/comm/watched_fabric.hpp>
#include <orthant/launch/watchdog/hang_report.hpp>
#include <orthant/tests/harness/run_ranks.hpp>

namespace orthant::launch {
namespace {

using namespace std::chrono_literals;
using stream::Clock;

constexpr auto kShort = 300ms;
constexpr auto kPatience = 60s;

std::array<std::chrono::milliseconds, kRunPhases> all_phases(std::chrono::milliseconds timeout) {
  std::array<std::chrono::milliseconds, kRunPhases> timeouts;
  timeouts.fill(timeout);
  return timeouts;
}

/// Takes the place of MPI_Abort.
struct FakeKill {
  std::atomic<int> code{-1};
  Clock::time_point at;
  std::function<void(int)> call() {
    return [this](int exit_code) {
      at = Clock::now();
      code = exit_code;
    };
  }
  bool comes_within(Clock::duration time) const {
    const auto deadline = Clock::now() + time;
    while (code < 0 && Clock::now() < deadline) std::this_thread::sleep_for(10ms);
    return code >= 0;
  }
};

std::string text_of(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class WatchdogTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(base_); }
  void TearDown() override { std::filesystem::remove_all(base_); }

  std::filesystem::path base_ = testing::TempDir() + fmt::format("watchdog-{}", ::getpid());
  std::filesystem::path folder_ = base_ / "hang";
  comm::FlightRecorder recorder_;
  FakeKill kill_;
};

TEST_F(WatchdogTest, ExpiresAndLeavesADump) {
  const auto group = recorder_.add_group({.communicator = 5, .name = "stage", .members = {0, 1}});
  recorder_.complete(recorder_.post(group, {}), false);
  recorder_.post(group, {.kind = comm::Operation::Kind::broadcast});
  testing::internal::CaptureStderr();
  const auto start = Clock::now();
  Watchdog watchdog(
      {.recorder = recorder_, .rank = 0, .size = 1, .timeouts = all_phases(kShort), .kill = kill_.call()});
  watchdog.dump_into(folder_);
  watchdog.enter(RunPhase::step, 8);
  ASSERT_TRUE(kill_.comes_within(kPatience));
  EXPECT_EQ(kill_.code, 6);
  EXPECT_GE(kill_.at - start, kShort);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(said.starts_with("orthant: hang: ")) << said;
  EXPECT_NE(said.find("#1 on stage [0 1]"), std::string::npos) << said;
  EXPECT_NE(said.find("phase step, step 8"), std::string::npos) << said;
  EXPECT_NE(said.find(folder_.string()), std::string::npos) << said;
  EXPECT_EQ(said.find("orthant:", 1), std::string::npos) << "once: " << said;

  const auto path = folder_ / "rank0.json";
  using std::filesystem::perms;
  EXPECT_EQ(std::filesystem::status(folder_).permissions(), perms::owner_all);
  EXPECT_EQ(std::filesystem::status(path).permissions(), perms::owner_read | perms::owner_write);
  const auto json = nlohmann::json::parse(text_of(path));
  EXPECT_EQ(json["rank"], 0);
  EXPECT_EQ(json["phase"], "step");
  EXPECT_EQ(json["step"], 8);
  EXPECT_EQ(json["expired"], true);
  EXPECT_EQ(json["pid"], ::getpid());
  EXPECT_GE(json["silent_s"].get<double>(), 0.3);
  EXPECT_EQ(json["timeout_s"].get<double>(), 0.3);
  ASSERT_EQ(json["open"].size(), 1u);
  EXPECT_EQ(json["open"][0]["sequence"], 1);
  EXPECT_EQ(json["open"][0]["group"], "stage [0 1]");
  EXPECT_EQ(json["open"][0]["what"], "broadcast from 0 of 0 fp32");
  EXPECT_EQ(json["ring"].size(), 1u);
  EXPECT_EQ(json["groups"][0]["posted"], 2);
  EXPECT_EQ(json["groups"][0]["completed"], 1);
}

/// Does `act` every 50 ms for a while that is longer than the time-out.
void keep_doing(const std::function<void()>& act) {
  for (const auto end = Clock::now() + 4000ms; Clock::now() < end; std::this_thread::sleep_for(50ms)) act();
}

TEST_F(WatchdogTest, DoesNotExpireWhileSomethingProgresses) {
  const auto group = recorder_.add_group({.communicator = 0, .name = "tp", .members = {0, 1}});
  Watchdog watchdog({.recorder = recorder_, .timeouts = all_phases(2500ms), .kill = kill_.call()});
  keep_doing([&] { watchdog.progress(); });
  EXPECT_EQ(kill_.code, -1) << "progress()";
  keep_doing([&] { watchdog.enter(RunPhase::step, 1); });
  EXPECT_EQ(kill_.code, -1) << "enter()";
  std::optional<comm::FlightRecorder::Ticket> open;
  keep_doing([&] {
    if (open) recorder_.complete(*open, false);
    open = open ? std::nullopt : std::optional(recorder_.post(group, {}));
  });
  EXPECT_EQ(kill_.code, -1) << "operations";
  testing::internal::CaptureStderr();
  EXPECT_TRUE(kill_.comes_within(kPatience)) << "and then it does";
  EXPECT_NE(testing::internal::GetCapturedStderr().find("no folder for dumps"), std::string::npos);
}

TEST_F(WatchdogTest, TakesTheTimeoutOfThePhase) {
  auto timeouts = all_phases(kShort);
  timeouts[static_cast<std::size_t>(RunPhase::save)] = 60s;
  timeouts[static_cast<std::size_t>(RunPhase::load)] = 0s;
  Watchdog watchdog({.recorder = recorder_, .timeouts = timeouts, .kill = kill_.call()});
  watchdog.enter(RunPhase::save, 3);
  EXPECT_FALSE(kill_.comes_within(1s));
  watchdog.enter(RunPhase::load, 0);
  EXPECT_FALSE(kill_.comes_within(1s)) << "0 is never";
  testing::internal::CaptureStderr();
  watchdog.enter(RunPhase::step, 3);
  EXPECT_TRUE(kill_.comes_within(kPatience));
  testing::internal::GetCapturedStderr();
}

TEST_F(WatchdogTest, NeverExpiresAfterItsEnd) {
  {
    Watchdog watchdog({.recorder = recorder_, .timeouts = all_phases(kShort), .kill = kill_.call()});
    watchdog.dump_into(folder_);
  }
  EXPECT_FALSE(kill_.comes_within(1s));
  EXPECT_FALSE(std::filesystem::exists(folder_)) << "nothing happened";
}

TEST_F(WatchdogTest, StillEndsTheProcessWhereNothingCanBeWritten) {
  testing::internal::CaptureStderr();
  Watchdog watchdog({.recorder = recorder_, .timeouts = all_phases(1000ms), .kill = kill_.call()});
  watchdog.dump_into(folder_);
  std::filesystem::remove_all(base_);
  ASSERT_TRUE(kill_.comes_within(kPatience));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("orthant: hang: rank 0"), std::string::npos);
}

/// Ranks 0 and 1 wait for rank 2, which never comes.
void hang_on_rank_2(const std::filesystem::path& folder, const std::function<void(int, comm::Fabric&)>& rank_2) {
  std::array<FakeKill, 3> kills;
  tests::run_ranks(3, [&](comm::Fabric& inner) {
    comm::FlightRecorder recorder;
    comm::WatchedFabric fabric(inner, recorder);
    const auto stage = fabric.make_collectives("stage", std::array{0, 1, 2});
    const auto quiet = inner.make_collectives("quiet", std::array{0, 1, 2});
    const auto rank = inner.rank();
    double data[4] = {};
    const comm::Span four{data, 4, DType::f64};
    const auto start = [&] { return stage->all_reduce(four, comm::Reduction::sum); };
    for (int i = 0; i < 3; ++i) start().wait(kPatience);
    std::optional<comm::Work> work;
    if (rank == 2) {
      rank_2(rank, fabric);
    } else {
      Watchdog watchdog({.recorder = recorder,
                         .rank = rank,
                         .size = 3,
                         .timeouts = all_phases(rank == 0 ? kShort : 2 * kShort),
                         .kill = kills[static_cast<std::size_t>(rank)].call()});
      watchdog.dump_into(folder);
      watchdog.enter(RunPhase::step, 8);
      work = start();
      EXPECT_TRUE(kills[static_cast<std::size_t>(rank)].comes_within(kPatience));
      EXPECT_FALSE(work->is_done());
    }
    comm::barrier(*quiet, kPatience);
    if (rank == 2) work = start();  // so that nothing is open any more when its data and recorder go
    work->wait(kPatience);
  });
}

TEST_F(WatchdogTest, FindsTheRankThatDoesNotAnswer) {
  testing::internal::CaptureStderr();
  hang_on_rank_2(folder_, [](int, comm::Fabric&) {});
  const std::string said = testing::internal::GetCapturedStderr();
  const std::string wanted = "rank 2 is behind: ranks 0, 1 wait in all_reduce sum of 4 fp64, #3 on stage [0 1 2]";
  EXPECT_TRUE(said.starts_with("orthant: hang: " + wanted)) << said;
  EXPECT_NE(said.find("rank 2 has no dump"), std::string::npos) << said;
  EXPECT_EQ(said.find("orthant:", 1), std::string::npos) << "one rank speaks: " << said;
  EXPECT_TRUE(text_of(folder_ / "verdict.txt").starts_with(wanted));
}

TEST_F(WatchdogTest, FindsARankThatIsAliveElsewhere) {
  testing::internal::CaptureStderr();
  FakeKill kill;
  hang_on_rank_2(folder_, [&](int rank, comm::Fabric&) {
    comm::FlightRecorder recorder;
    Watchdog watchdog(
        {.recorder = recorder, .rank = rank, .size = 3, .timeouts = all_phases(60s), .kill = kill.call()});
    watchdog.dump_into(folder_);
    watchdog.enter(RunPhase::save, 7);
    for (const auto deadline = Clock::now() + kPatience; Clock::now() < deadline; std::this_thread::sleep_for(10ms))
      if (std::filesystem::exists(folder_ / "verdict.txt")) break;
  });
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("rank 2 (phase save, step 7) waits for nobody, and its own time-out has not expired"),
            std::string::npos)
      << said;
  EXPECT_EQ(said.find("has no dump"), std::string::npos) << said;
  EXPECT_EQ(kill.code, -1) << "only those whose time is up end the run";
}

TEST_F(WatchdogTest, ARankThatWakesAfterTheVerdictLeavesNoDump) {
  const HangFolder folder(folder_);
  folder.write({.rank = 0, .size = 3});
  Watchdog early({.recorder = recorder_, .rank = 1, .size = 3, .timeouts = all_phases(60s), .kill = kill_.call()});
  early.dump_into(folder_);
  const auto is_there = [&] { return std::filesystem::exists(folder_ / "rank1.json"); };
  for (const auto deadline = Clock::now() + kPatience; !is_there() && Clock::now() < deadline;)
    std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(is_there());
  folder.claim_verdict("rank 2 is behind\n");
  Watchdog late({.recorder = recorder_, .rank = 2, .size = 3, .timeouts = all_phases(60s), .kill = kill_.call()});
  late.dump_into(folder_);
  std::this_thread::sleep_for(1500ms);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "rank2.json"));
}

/// Runs `body` in a process of its own.
struct Child {
  explicit Child(const std::function<void()>& body) : pid(::fork()) {
    if (pid != 0) return;
    body();
    ::_exit(0);
  }
  int exit_code() const {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  const pid_t pid;
};

TEST_F(WatchdogTest, TimeForWhichTheProcessWasStoppedDoesNotCount) {
  const Child child([this] {
    Watchdog watchdog({.recorder = recorder_, .timeouts = all_phases(3000ms), .kill = [](int code) { ::_exit(code); }});
    for (auto before = Clock::now();;) {  // until it was stopped
      std::this_thread::sleep_for(10ms);
      const auto now = Clock::now();
      if (now - before > 4s) break;
      before = now;
    }
    std::this_thread::sleep_for(500ms);
    ::_exit(0);  // alive, though 5 s have passed without progress
  });
  std::this_thread::sleep_for(1s);
  ::kill(child.pid, SIGSTOP);
  std::this_thread::sleep_for(5s);
  ::kill(child.pid, SIGCONT);
  EXPECT_EQ(child.exit_code(), 0);
}

TEST_F(WatchdogTest, EndsTheProcessItselfWhenTheKillDoesNotComeBack) {
  const auto start = Clock::now();
  const Child child([this] {
    Watchdog watchdog({.recorder = recorder_, .timeouts = all_phases(kShort), .kill = [](int) { ::pause(); }});
    ::close(STDERR_FILENO);
    for (;;) ::pause();
  });
  EXPECT_EQ(child.exit_code(), 6);
  EXPECT_GE(Clock::now() - start, 5s) << "the kill had its time";
}

}  // namespace
}  // namespace orthant::launch
