// SPDX-License-Identifier: Apache-2.0
// Claims are about "not before" only: how late a busy machine wakes a thread is no property of the link.
#include <orthant/core/comm/paced_fabric.hpp>

#include <array>

#include <gtest/gtest.h>

#include <orthant/core/comm/agree.hpp>
#include <orthant/tests/harness/run_ranks.hpp>

namespace orthant::comm {
namespace {

using namespace std::chrono_literals;
using stream::Clock;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

TEST(PacedFabric, MessagesArriveInOrderAndNotBeforeTheLinkWouldHaveDeliveredThem) {
  tests::run_ranks(2, [](Fabric& fabric) {
    PacedFabric paced(fabric, {.latency_us = 20'000, .bytes_per_us = 0.001});  // 8 bytes take 8 ms more
    const auto channel = paced.make_channel("link", 0, 1);
    for (std::int64_t i = 0; i < 3; ++i) {
      const auto begin = Clock::now();
      if (fabric.rank() == 0) {
        channel->send({&i, 1, DType::i64}).wait(30s);
      } else {
        std::int64_t got = -1;
        channel->receive({&got, 1, DType::i64}).wait(30s);
        EXPECT_EQ(got, i);
        EXPECT_GE(ms_since(begin), 28.0) << "the receive was posted at `begin` or later";
      }
    }
  });
}

TEST(PacedFabric, CountsFromTheLaterOfSendAndReceive) {
  tests::run_ranks(2, [](Fabric& fabric) {
    PacedFabric paced(fabric, {.latency_us = 30'000});
    const auto channel = paced.make_channel("link", 0, 1);
    const std::array everybody{0, 1};
    const auto all = fabric.make_collectives("all", everybody);
    barrier(*all, 30s);
    std::int64_t sent = 0;
    if (fabric.rank() == 0) {
      std::this_thread::sleep_for(50ms);
      sent = Clock::now().time_since_epoch().count();
      channel->send({&sent, 1, DType::i64}).wait(30s);
    } else {
      channel->receive({&sent, 1, DType::i64}).wait(30s);
      EXPECT_GE(ms_since(Clock::time_point(Clock::duration(sent))), 30.0);
    }
  });
}

}  // namespace
}  // namespace orthant::comm
