// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/stream/timer.hpp>

#include <atomic>
#include <vector>

#include <gtest/gtest.h>

namespace orthant::stream {
namespace {

using namespace std::chrono_literals;

TEST(Timer, CallsInOrderOfTimeAndNeverEarly) {
  std::mutex mutex;
  std::vector<int> order;
  std::atomic<int> early = 0;
  const Promise last("the last call");
  {
    Timer timer;
    const auto begin = Clock::now() + 300ms;  // when all are there
    for (const int ms : {30, 10, 20, 40}) {
      timer.at(begin + std::chrono::milliseconds(ms), [&, ms] {
        if (Clock::now() < begin + std::chrono::milliseconds(ms)) ++early;
        const std::lock_guard lock(mutex);
        order.push_back(ms);
        if (ms == 40) last.complete();
      });
    }
    last.work().wait(30s);
  }
  EXPECT_EQ(order, (std::vector{10, 20, 30, 40}));
  EXPECT_EQ(early, 0);
}

TEST(Timer, ACallMayAskForAnother) {
  const Promise second("the second call");
  Timer timer;
  timer.at(Clock::now(), [&] { timer.at(Clock::now() + 1ms, [&] { second.complete(); }); });
  second.work().wait(30s);
}

TEST(Timer, ForgetsWhatIsNotDueWhenItGoes) {
  std::atomic<bool> called = false;
  { Timer().at(Clock::now() + 1h, [&] { called = true; }); }
  EXPECT_FALSE(called);
}

}  // namespace
}  // namespace orthant::stream
