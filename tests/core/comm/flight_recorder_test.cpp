// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/comm/flight_recorder.hpp>

#include <array>
#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/agree.hpp>
#include <orthant/core/comm/watched_fabric.hpp>
#include <orthant/tests/harness/run_ranks.hpp>

#include "conformance.hpp"

namespace orthant::comm {
namespace {

using namespace std::chrono_literals;
using tests::kPatience;
using tests::run_ranks;

Operation sum_of(std::int64_t count) {
  const Span data{nullptr, count, DType::f64};
  return {.kind = Operation::Kind::all_reduce, .in = data, .out = data};
}

FlightGroup group(const char* name) { return {.communicator = 0, .name = name, .members = {0, 1}}; }

TEST(FlightRecorder, KeepsTheLastOperationsOldestFirst) {
  FlightRecorder recorder(4);
  const auto tp = recorder.add_group(group("tp"));
  for (int i = 0; i < 10; ++i) recorder.complete(recorder.post(tp, sum_of(i)), i == 8);
  const auto log = recorder.snapshot();
  ASSERT_EQ(log.records.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(log.records[i].sequence, static_cast<std::int64_t>(6 + i));
    EXPECT_EQ(agreed_count(log.records[i].operation), static_cast<std::int64_t>(6 + i));
    EXPECT_EQ(log.records[i].bytes, 8 * (6 + i));
    EXPECT_EQ(log.records[i].has_failed, i == 2);
    ASSERT_TRUE(log.records[i].completed);
    EXPECT_GE(*log.records[i].completed, log.records[i].posted);
  }
  EXPECT_FALSE(recorder.oldest_open());

  recorder.complete(log.records.back().ticket, true);  // once is enough
  EXPECT_EQ(recorder.snapshot().groups[tp].completed, 10);
  EXPECT_FALSE(recorder.snapshot().records.back().has_failed);
}

TEST(FlightRecorder, NeverLosesAnOpenOperation) {
  FlightRecorder recorder(4);
  const auto tp = recorder.add_group(group("tp"));
  const auto dp = recorder.add_group(group("dp"));
  const auto first = recorder.post(tp, sum_of(1));
  const auto second = recorder.post(dp, sum_of(2));
  for (int i = 0; i < 20; ++i) recorder.complete(recorder.post(dp, sum_of(3)), false);

  auto log = recorder.snapshot();
  ASSERT_EQ(log.records.size(), 6u);
  EXPECT_EQ(log.records[0].ticket, first);
  EXPECT_EQ(log.records[1].ticket, second);
  EXPECT_FALSE(log.records[0].completed || log.records[1].completed);
  ASSERT_TRUE(recorder.oldest_open());
  EXPECT_EQ(recorder.oldest_open()->ticket, first);

  recorder.complete(first, false);
  recorder.complete(first, false);  // once is enough
  EXPECT_EQ(recorder.oldest_open()->ticket, second);
  recorder.complete(second, false);
  EXPECT_FALSE(recorder.oldest_open());
  log = recorder.snapshot();
  EXPECT_EQ(log.records.size(), 4u);
  EXPECT_EQ(log.groups[tp].posted, 1);
  EXPECT_EQ(log.groups[tp].completed, 1);
  EXPECT_EQ(log.groups[dp].posted, 21);
  EXPECT_EQ(log.groups[dp].completed, 21);
}

TEST(FlightRecorder, FindsTheOldestOpenOperationInTheRing) {
  FlightRecorder recorder(4);
  const auto tp = recorder.add_group(group("tp"));
  for (int i = 0; i < 6; ++i) recorder.complete(recorder.post(tp, sum_of(1)), false);
  const auto open = recorder.post(tp, sum_of(7));
  recorder.post(tp, sum_of(8));
  ASSERT_TRUE(recorder.oldest_open());
  EXPECT_EQ(recorder.oldest_open()->ticket, open);
  EXPECT_EQ(recorder.oldest_open()->sequence, 6);
}

TEST(FlightRecorder, SeesProgressInAPostAndInACompletion) {
  FlightRecorder recorder;
  const auto tp = recorder.add_group(group("tp"));
  const auto start = recorder.last_progress();
  std::this_thread::sleep_for(2ms);
  const auto ticket = recorder.post(tp, sum_of(1));
  const auto posted = recorder.last_progress();
  std::this_thread::sleep_for(2ms);
  recorder.complete(ticket, false);
  EXPECT_LT(start, posted);
  EXPECT_LT(posted, recorder.last_progress());
}

TEST(FlightRecorder, CountsFromManyThreads) {
  FlightRecorder recorder(16);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    const auto mine = recorder.add_group(group("tp"));
    threads.emplace_back([&recorder, mine] {
      std::vector<FlightRecorder::Ticket> open;
      for (int i = 0; i < 2000; ++i) {
        open.push_back(recorder.post(mine, sum_of(i)));
        if (open.size() == 10) {
          for (const auto ticket : open) recorder.complete(ticket, false);
          open.clear();
        }
        if (i % 100 == 0) static_cast<void>(recorder.snapshot());
      }
      for (const auto ticket : open) recorder.complete(ticket, false);
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& counted : recorder.snapshot().groups) {
    EXPECT_EQ(counted.posted, 2000);
    EXPECT_EQ(counted.completed, 2000);
  }
}

TEST(WatchedFabric, MatchesTheSerialReference) {
  for (const int ranks : {1, 3}) {
    run_ranks(ranks, [](Fabric& inner) {
      FlightRecorder recorder;
      WatchedFabric fabric(inner, recorder);
      tests::check_collectives(fabric);
      tests::check_concurrency(fabric);
      tests::check_channels(fabric);
    });
  }
}

/// A fabric's description of an operation ends with "#n on group".
std::string numbered(const FlightRecord& record, const FlightLog& log) {
  const auto& where = log.groups[record.group];
  return describe(record.operation, record.sequence, describe_group(where.name, where.members));
}

TEST(WatchedFabric, RecordsWhatTheFabricBelowSaysOfItself) {
  run_ranks(3, [](Fabric& inner) {
    FlightRecorder recorder;
    WatchedFabric fabric(inner, recorder);
    const auto alone = fabric.make_collectives("alone", std::array{1});
    const auto world = fabric.make_collectives("world", std::array{0, 1, 2});
    const auto pair = fabric.make_collectives("pair", std::array{0, 1});
    const auto link = fabric.make_channel("link", 1, 0);
    const auto last = fabric.make_collectives("last", std::array{0, 1, 2});
    std::vector<std::string> said;
    const auto run = [&](Work work) {
      work.wait(kPatience);
      said.push_back(work.description());
    };
    double data[6] = {}, part[2] = {};
    const Span all{data, 6, DType::f64}, third{part, 2, DType::f64};
    EXPECT_THROW(static_cast<void>(world->broadcast(all, 7)), ShapeError);  // has no number
    run(world->all_reduce(all, Reduction::max));
    if (alone) alone->all_reduce(all, Reduction::sum).wait(kPatience);
    run(world->reduce_scatter(all, third, Into::replace));
    if (pair) run(pair->broadcast(third, 1));
    if (link) run(inner.rank() == 1 ? link->send(third) : link->receive(third));
    run(world->all_gather(third, all));

    const auto log = recorder.snapshot();
    std::vector<std::string> recorded;
    for (const auto& record : log.records) {
      recorded.push_back(numbered(record, log));
      EXPECT_TRUE(record.completed && !record.has_failed);
    }
    EXPECT_EQ(recorded, said);
    EXPECT_EQ(said.front(), "all_reduce max of 6 fp64, #0 on world [0 1 2]");
    EXPECT_EQ(said.back(), "all_gather of 2 fp64, #2 on world [0 1 2]");
    // All ranks count all communicators, their own or not.
    EXPECT_EQ(log.groups.front().communicator, 1);
    EXPECT_EQ(log.groups.back().communicator, 4);
    if (link) {
      const auto& recorded_link = log.groups[log.groups.size() - 2];
      EXPECT_EQ(recorded_link.communicator, 3);
      EXPECT_EQ(recorded_link.members, (std::vector{1, 0}));
    }
  });
}

TEST(WatchedFabric, ShowsWhatIsOpenUntilTheOthersCome) {
  run_ranks(2, [](Fabric& inner) {
    FlightRecorder recorder;
    WatchedFabric fabric(inner, recorder);
    const auto world = fabric.make_collectives("world", std::array{0, 1});
    const auto quiet = inner.make_collectives("quiet", std::array{0, 1});
    double value = inner.rank();
    const Span data{&value, 1, DType::f64};
    if (inner.rank() == 0) {
      Work work = world->all_reduce(data, Reduction::sum);
      EXPECT_FALSE(work.is_done());
      const auto open = recorder.oldest_open();
      EXPECT_TRUE(open && open->sequence == 0);
      barrier(*quiet, kPatience);
      work.wait(kPatience);
    } else {
      barrier(*quiet, kPatience);
      world->all_reduce(data, Reduction::sum).wait(kPatience);
    }
    EXPECT_EQ(value, 1.0);
    EXPECT_FALSE(recorder.oldest_open()) << "recorded as done before anybody hears of it";
  });
}

TEST(WatchedFabric, RecordsAFailureAndPassesItOn) {
  run_ranks(2, [](Fabric& inner) {
    FlightRecorder recorder;
    WatchedFabric fabric(inner, recorder);
    const auto world = fabric.make_collectives("world", std::array{0, 1});
    const auto quiet = inner.make_collectives("quiet", std::array{0, 1});
    if (inner.rank() == 0) {
      double value = 0;
      Work work = world->all_reduce({&value, 1, DType::f64}, Reduction::sum);
      barrier(*quiet, kPatience);
      fabric.abort("on purpose");
      EXPECT_THROW(work.wait(kPatience), CommError);
      EXPECT_TRUE(recorder.snapshot().records.at(0).has_failed);
    } else {
      barrier(*quiet, kPatience);
    }
  });
}

TEST(WatchedFabric, LeavesOutOneOperationInADrill) {
  run_ranks(2, [](Fabric& inner) {
    FlightRecorder recorder;
    WatchedFabric fabric(inner, recorder);
    const auto world = fabric.make_collectives("world", std::array{0, 1});
    const auto other = fabric.make_collectives("other", std::array{0, 1});
    double value = 1;
    const Span data{&value, 1, DType::f64};
    if (inner.rank() == 1) fabric.skip_next("world");
    other->all_reduce(data, Reduction::sum).wait(kPatience);  // of another group: takes place
    EXPECT_EQ(value, 2.0);
    Work work = world->all_reduce(data, Reduction::sum);
    EXPECT_EQ(work.is_done(), inner.rank() == 1);
    other->all_reduce({&value, 0, DType::f64}, Reduction::sum).wait(kPatience);  // both have been here
    EXPECT_EQ(recorder.snapshot().groups.front().posted, inner.rank() == 1 ? 0 : 1);
    if (inner.rank() == 1) world->all_reduce(data, Reduction::sum).wait(kPatience);  // the next one is no drill
    work.wait(kPatience);
    EXPECT_EQ(value, 4.0);
  });
}

}  // namespace
}  // namespace orthant::comm
