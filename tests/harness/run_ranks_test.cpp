// SPDX-License-Identifier: Apache-2.0
#include <orthant/tests/harness/run_ranks.hpp>

#include <atomic>
#include <numeric>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>

namespace orthant::tests {
namespace {

using namespace std::chrono_literals;

std::unique_ptr<comm::Collectives> world_of(comm::Fabric& fabric) {
  std::vector<int> all(static_cast<std::size_t>(fabric.size()));
  std::iota(all.begin(), all.end(), 0);
  return fabric.make_collectives("world", all);
}

void meet(comm::Collectives& group) {
  float value = 1;
  group.all_reduce({&value, 1, DType::f32}, comm::Reduction::sum).wait(30s);
}

TEST(RunRanks, RunsEveryRankOnce) {
  std::atomic<int> ranks = 0;
  run_ranks(8, [&](comm::Fabric& fabric) { ranks += 1 << (4 * fabric.rank() / 2); });
  EXPECT_EQ(ranks, 0x5555);
}

TEST(RunRanks, PutsTheRootCauseBeforeItsConsequences) {
  try {
    run_ranks(4, [](comm::Fabric& fabric) {
      const auto group = world_of(fabric);
      meet(*group);
      if (fabric.rank() == 2) throw DataError("the token file is gone");
      meet(*group);
    });
    FAIL() << "rank 2 threw";
  } catch (const RanksFailed& failed) {
    EXPECT_EQ(std::string(failed.what()).substr(0, 30), "rank 2: the token file is gone");
    ASSERT_EQ(failed.failures.size(), 4U);
    EXPECT_THROW(std::rethrow_exception(failed.failures[0].exception), DataError);
    EXPECT_EQ(failed.failures[3].what, "rank 2 failed: the token file is gone");
  }
}

TEST(RunRanks, NamesTheRankThatNeverCame) {
  try {
    run_ranks(
        3,
        [](comm::Fabric& fabric) {
          const auto group = world_of(fabric);
          if (fabric.rank() != 1) meet(*group);
        },
        2s);
    FAIL() << "ranks 0 and 2 wait for ever";
  } catch (const RanksFailed& failed) {
    const std::string first = std::string(failed.what()).substr(0, std::string(failed.what()).find('\n'));
    EXPECT_NE(first.find("watchdog: 2 of 3 ranks still run"), std::string::npos) << first;
    EXPECT_NE(first.find("all_reduce sum of 1 fp32, #0 on world [0 1 2]: ranks 0 2 are there, ranks 1 are not"),
              std::string::npos)
        << first;
  }
}

}  // namespace
}  // namespace orthant::tests
