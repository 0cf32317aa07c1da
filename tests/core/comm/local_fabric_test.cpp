// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/local_fabric.hpp>
#include <orthant/core/comm/recording_fabric.hpp>
#include <orthant/tests/harness/run_ranks.hpp>

#include "conformance.hpp"

namespace orthant::tests {
namespace {

using namespace std::chrono_literals;
using comm::Reduction;

class LocalFabricOf : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LocalFabricOf, testing::Range(1, 9));

TEST_P(LocalFabricOf, MatchesTheSerialReference) {
  run_ranks(
      GetParam(), [](comm::Fabric& f) { check_collectives(f); }, 100s);
}
TEST_P(LocalFabricOf, KeepsConcurrentOperationsApart) { run_ranks(GetParam(), check_concurrency); }
TEST_P(LocalFabricOf, CompletesInOrder) { run_ranks(GetParam(), check_order); }
TEST_P(LocalFabricOf, SendsInOrder) { run_ranks(GetParam(), check_channels); }
TEST_P(LocalFabricOf, Agrees) { run_ranks(GetParam(), check_agreement); }

TEST(LocalFabric, NamesBothCallsThatDoNotMatch) { run_ranks(3, check_mismatch); }

TEST(LocalFabric, DoesNotEndASendBeforeItIsReceived) {
  run_ranks(2, [](comm::Fabric& fabric) {
    const auto world = make_world(fabric);
    const auto channel = fabric.make_channel("forward", 0, 1);
    float value = static_cast<float>(fabric.rank());
    if (fabric.rank() == 0) {
      comm::Work sent = channel->send({&value, 1, DType::f32});
      comm::Span mine{&value, 0, DType::f32};
      world->all_reduce(mine, Reduction::sum).wait(kPatience);  // rank 1 has not received yet
      EXPECT_FALSE(sent.is_done());
      world->all_reduce(mine, Reduction::sum).wait(kPatience);
      sent.wait(kPatience);
    } else {
      float got = -1;
      comm::Span none{&value, 0, DType::f32};
      world->all_reduce(none, Reduction::sum).wait(kPatience);
      world->all_reduce(none, Reduction::sum).wait(kPatience);
      channel->receive({&got, 1, DType::f32}).wait(kPatience);
      EXPECT_EQ(got, 0.0F);
    }
  });
}

TEST(LocalFabric, AbortFailsOpenAndLaterOperations) {
  run_ranks(2, [](comm::Fabric& fabric) {
    const auto world = make_world(fabric);
    float value = 1;
    const comm::Span data{&value, 1, DType::f32};
    world->all_reduce(data, Reduction::sum).wait(kPatience);  // nobody makes communicators any more
    if (fabric.rank() == 1) {
      fabric.abort("on purpose");
    } else {
      comm::Work open = world->all_reduce(data, Reduction::sum);
      EXPECT_THROW(open.wait(kPatience), CommError);
    }
    try {
      world->broadcast(data, 0).wait(kPatience);
      ADD_FAILURE() << "the fabric was aborted";
    } catch (const CommError& error) {
      EXPECT_STREQ(error.what(), "on purpose");
    }
  });
}

TEST(LocalFabric, RejectsAnotherOrderOfCreation) {
  std::atomic<int> rejected = 0;
  EXPECT_THROW(run_ranks(2,
                         [&](comm::Fabric& fabric) {
                           const int both[] = {0, 1};
                           try {
                             fabric.make_collectives(fabric.rank() == 0 ? "tp" : "dp", both);
                           } catch (const CommError& error) {
                             rejected += std::string(error.what()).find("is tp [0 1] on one rank and dp [0 1]") !=
                                             std::string::npos ||
                                         std::string(error.what()).find("is dp [0 1] on one rank and tp [0 1]") !=
                                             std::string::npos;
                             throw;
                           }
                         }),
               RanksFailed);
  EXPECT_EQ(rejected, 1);
}

TEST(LocalFabric, ChecksSpansBeforeItStarts) {
  run_ranks(2, [](comm::Fabric& fabric) {
    const auto world = make_world(fabric);
    float data[6] = {};
    const comm::Span three{data, 3, DType::f32}, five{data, 5, DType::f32};
    EXPECT_THROW((void)world->all_gather(three, five), ShapeError);
    EXPECT_THROW((void)world->reduce_scatter(five, three, comm::Into::replace), ShapeError);
    EXPECT_THROW((void)world->all_to_all(three, three), ShapeError);
    EXPECT_THROW((void)world->broadcast(three, 2), ShapeError);
    EXPECT_THROW((void)world->all_reduce({data, 3, DType::u8}, Reduction::sum), ShapeError);
  });
}

TEST(RecordingFabric, LogsOperationsInOrder) {
  run_ranks(2, [](comm::Fabric& inner) {
    comm::RecordingFabric fabric(inner);
    const auto world = make_world(fabric);
    const auto channel = fabric.make_channel("forward", 0, 1);
    std::int64_t number = 1;
    std::uint16_t halves[3] = {};
    float full[8] = {}, shard[4];
    world->all_reduce({&number, 1, DType::i64}, Reduction::sum).wait(kPatience);
    const comm::Span message{halves, 3, DType::bf16};
    (inner.rank() == 0 ? channel->send(message) : channel->receive(message)).wait(kPatience);
    world->reduce_scatter({full, 8, DType::f32}, {shard, 4, DType::f32}, comm::Into::replace).wait(kPatience);
    EXPECT_EQ(number, 2);

    using Kind = comm::Operation::Kind;
    const std::vector<comm::OperationRecord> wanted = {{"world", Kind::all_reduce, 1, DType::i64, 0},
                                                       {"forward", Kind::transfer, 3, DType::bf16, 0},
                                                       {"world", Kind::reduce_scatter, 4, DType::f32, 1}};
    EXPECT_EQ(fabric.records(), wanted);
  });
}

}  // namespace
}  // namespace orthant::tests
