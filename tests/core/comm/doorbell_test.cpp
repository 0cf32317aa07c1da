// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <orthant/core/comm/doorbell.hpp>
#include <thread>

namespace orthant::tests {
namespace {

using namespace std::chrono_literals;
using comm::Doorbell;

// One lost ring costs a whole wait, so a few lost ones run into the test's time limit.
TEST(Doorbell, LosesNoRing) {
  constexpr std::uint32_t kTurns = 20'000;
  Doorbell ping, pong;
  const auto play = [](Doorbell& mine, Doorbell& other, bool serves) {
    for (std::uint32_t turn = 0; turn < kTurns; ++turn) {
      if (serves) other.ring();
      while (mine.rings.load() == turn) mine.wait(turn, Doorbell::waiting, 30s);
      if (!serves) other.ring();
    }
  };
  std::thread opponent(play, std::ref(pong), std::ref(ping), false);
  play(ping, pong, true);
  opponent.join();
  EXPECT_EQ(ping.rings, kTurns);
  EXPECT_EQ(pong.rings, kTurns);
}

TEST(Doorbell, WakesAParkedOwnerWhenRungLoudly) {
  Doorbell bell;
  std::thread owner([&] { bell.wait(0, Doorbell::parked, 300s); });
  while (bell.sleep.load() != Doorbell::parked) std::this_thread::yield();
  bell.ring_loudly();
  owner.join();
  EXPECT_EQ(bell.sleep, Doorbell::awake);
}

}  // namespace
}  // namespace orthant::tests
