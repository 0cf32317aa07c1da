// SPDX-License-Identifier: Apache-2.0
// The calls that NcclFabric makes, as data, and what becomes of their failures.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/local_fabric.hpp>
#include <orthant/core/cuda/nccl_fabric.hpp>
#include <orthant/core/cuda/recording_driver.hpp>
#include <orthant/tests/harness/run_ranks.hpp>

namespace orthant::cuda {
namespace {

using namespace std::chrono_literals;
using comm::Into;
using comm::Reduction;
using tests::run_ranks;

std::string message_of(comm::Work work) {
  try {
    work.wait(30s);
  } catch (const CommError& error) {
    return error.what();
  }
  return "no error";
}

/// A group of two on this thread: rank 0's half of the calls.
struct Calls : testing::Test {
  template <class Body>
  void on_rank_0_of_2(RecordingOptions options, const Body& body) {
    run_ranks(2, [&](comm::Fabric& local) {
      RecordingDriver driver(local.rank() == 0 ? options : RecordingOptions{});
      NcclFabric fabric(driver, local, 30s);
      const int members[] = {0, 1};
      const auto group = fabric.make_collectives("dp", members);
      if (local.rank() == 0) body(fabric, *group, driver);
    });
  }
  /// On a stream of its own, as in a task.
  static std::vector<RecordingDriver::Entry> calls_of(RecordingDriver& driver,
                                                      const std::function<comm::Work()>& operation) {
    const DeviceStream stream = driver.create_stream(Priority::normal);
    const std::size_t before = driver.log().size();
    driver.with_stream(stream, [&] { EXPECT_TRUE(operation().is_done()) << "in a task, enqueued is done"; });
    auto log = driver.log();
    log.erase(log.begin(), log.begin() + static_cast<std::ptrdiff_t>(before));
    for (const auto& entry : log) EXPECT_EQ(entry.stream, stream);
    return log;
  }
};
using NcclFabricCalls = Calls;

TEST_F(NcclFabricCalls, FormOneCommunicatorAGroupWithTheIdOfItsFirstMember) {
  std::vector<RecordingDriver::Group> made(4);
  run_ranks(4, [&](comm::Fabric& local) {
    const auto me = static_cast<std::size_t>(local.rank());
    RecordingDriver driver({.seed = me});
    NcclFabric fabric(driver, local, 30s);
    const int low[] = {0, 2}, high[] = {1, 3};
    const auto a = fabric.make_collectives("low", low);
    const auto b = fabric.make_collectives("high", high);
    EXPECT_EQ(a != nullptr, me % 2 == 0);
    EXPECT_EQ(b != nullptr, me % 2 == 1);
    ASSERT_EQ(driver.communicators().size(), 1u);
    made[me] = driver.group(driver.communicators()[0]);
  });
  EXPECT_EQ(made[0].id, made[2].id);
  EXPECT_EQ(made[1].id, made[3].id);
  EXPECT_NE(made[0].id, made[1].id);
  for (int r = 0; r < 4; ++r) {
    const auto& group = made[static_cast<std::size_t>(r)];
    EXPECT_EQ(group.name, r % 2 == 0 ? "low" : "high");
    EXPECT_EQ(group.rank, r / 2);
    EXPECT_EQ(group.size, 2);
  }
}

TEST_F(NcclFabricCalls, OfBf16ReduceScatterExchangeAndAddInFp32) {
  on_rank_0_of_2({}, [](NcclFabric&, comm::Collectives& group, RecordingDriver& driver) {
    std::vector<std::uint16_t> full(20);
    std::vector<float> shard(10);
    const auto calls = calls_of(driver, [&] {
      return group.reduce_scatter({full.data(), 20, DType::bf16}, {shard.data(), 10, DType::f32}, Into::accumulate);
    });
    ASSERT_EQ(calls.size(), 2u);
    const auto& transfers = std::get<Exchange>(calls[0].command).transfers;
    const auto& sum = std::get<SumRows>(calls[1].command);
    ASSERT_EQ(transfers.size(), 2u);
    for (int peer = 0; peer < 2; ++peer) {
      const auto& [to, send, receive] = transfers[static_cast<std::size_t>(peer)];
      EXPECT_EQ(to, peer);
      EXPECT_EQ(send.data, &full[static_cast<std::size_t>(peer) * 10]);
      EXPECT_EQ(receive.data, static_cast<const std::byte*>(sum.in.data) + peer * 20);
      EXPECT_EQ(send.count, 10);
      EXPECT_EQ(receive.count, 10);
      EXPECT_EQ(send.type, DType::bf16);
    }
    EXPECT_EQ(sum.rows, 2);
    EXPECT_EQ(sum.out.data, shard.data());
    EXPECT_EQ(sum.out.type, DType::f32);
    EXPECT_EQ(sum.into, Into::accumulate);
    EXPECT_EQ(driver.open_scratch(), 1u) << "freed in stream order only";
    while (driver.step()) {
    }
    EXPECT_EQ(driver.open_scratch(), 0u);
  });
}

TEST_F(NcclFabricCalls, OfFp32ReduceScatterAreNcclsOwn) {
  on_rank_0_of_2({}, [](NcclFabric&, comm::Collectives& group, RecordingDriver& driver) {
    std::vector<float> full(20), shard(10);
    const comm::Span in{full.data(), 20, DType::f32}, out{shard.data(), 10, DType::f32};
    const auto replace = calls_of(driver, [&] { return group.reduce_scatter(in, out, Into::replace); });
    ASSERT_EQ(replace.size(), 1u);
    EXPECT_EQ(std::get<ReduceScatter>(replace[0].command).shard.data, shard.data());
    const auto accumulate = calls_of(driver, [&] { return group.reduce_scatter(in, out, Into::accumulate); });
    ASSERT_EQ(accumulate.size(), 2u);
    EXPECT_NE(std::get<ReduceScatter>(accumulate[0].command).shard.data, shard.data());
    EXPECT_EQ(std::get<SumRows>(accumulate[1].command).rows, 1);
  });
}

TEST_F(NcclFabricCalls, LeaveHostMemoryToTheHostFabric) {
  run_ranks(2, [&](comm::Fabric& local) {
    RecordingDriver driver({.is_device = [](const void*) { return false; }});
    NcclFabric fabric(driver, local, 30s);
    const int members[] = {0, 1};
    const auto group = fabric.make_collectives("dp", members);
    double value = local.rank() + 1;
    group->all_reduce({&value, 1, DType::f64}, Reduction::sum).wait(30s);
    EXPECT_EQ(value, 3);
    for (const auto& entry : driver.log()) EXPECT_TRUE(std::holds_alternative<Record>(entry.command));
  });
}

TEST_F(NcclFabricCalls, ThatFailNameOperationNumberAndCommunicator) {
  int calls = 0;
  RecordingOptions options;
  options.on_enqueue = [&](const Command& command) {
    if (std::holds_alternative<AllReduce>(command) && calls++ == 1) throw CommError("ncclAllReduce: internal error");
  };
  on_rank_0_of_2(options, [](NcclFabric& fabric, comm::Collectives& group, RecordingDriver& driver) {
    float value = 0;
    const auto sum = [&] { return group.all_reduce({&value, 1, DType::f32}, Reduction::sum); };
    EXPECT_EQ(message_of(sum()), "no error");
    EXPECT_EQ(message_of(sum()), "all_reduce sum of 1 fp32, #1 on dp [0 1]: ncclAllReduce: internal error");
    driver.set_async_error(driver.communicators()[0], "NCCL reports: remote process exited");
    std::string found;
    try {
      fabric.check();
    } catch (const CommError& error) {
      found = error.what();
    }
    EXPECT_EQ(
        found,
        "dp [0 1]: NCCL reports: remote process exited; last operation: all_reduce sum of 1 fp32, #1 on dp [0 1]");
  });
}

TEST_F(NcclFabricCalls, OfAbortReachEveryCommunicator) {
  run_ranks(2, [&](comm::Fabric& local) {
    RecordingDriver driver;
    NcclFabric fabric(driver, local, 30s);
    const int members[] = {0, 1};
    const auto dp = fabric.make_collectives("dp", members), tp = fabric.make_collectives("tp", members);
    const auto channel = fabric.make_channel("forward", 0, 1);
    fabric.abort("on purpose");
    ASSERT_EQ(driver.communicators().size(), 3u);
    for (const auto communicator : driver.communicators()) EXPECT_TRUE(driver.group(communicator).aborted);
    float value = 0;
    const comm::Span data{&value, 1, DType::f32};
    EXPECT_EQ(message_of(tp->broadcast(data, 0)), "broadcast from 0 of 1 fp32, #0 on tp [0 1]: on purpose");
    EXPECT_EQ(message_of(local.rank() == 0 ? channel->send(data) : channel->receive(data)),
              "transfer of 1 fp32, #0 on forward [0 1]: on purpose");
    EXPECT_NO_THROW(fabric.check());
  });
}

TEST_F(NcclFabricCalls, RegisterABufferWithItsCommunicatorOnly) {
  on_rank_0_of_2({}, [](NcclFabric& fabric, comm::Collectives& group, RecordingDriver& driver) {
    std::vector<float> weights(8);
    fabric.register_buffer(group, {weights.data(), 8, DType::f32});
    const auto registered = driver.group(driver.communicators()[0]).registered;
    ASSERT_EQ(registered.size(), 1u);
    EXPECT_EQ(registered[0].data, weights.data());
    EXPECT_EQ(registered[0].bytes(), 32u);
  });
}

}  // namespace
}  // namespace orthant::cuda
