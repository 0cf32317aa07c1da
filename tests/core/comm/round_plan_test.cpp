// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <map>
#include <orthant/core/comm/round_plan.hpp>

namespace orthant::tests {
namespace {

using comm::Flow;
using comm::Operation;
using comm::RoundPlan;
using Kind = Operation::Kind;

// Addresses only: nothing is read or written while flows are listed.
Operation operation(Kind kind, std::int64_t n, int rank, int size) {
  static std::byte memory[1];
  const auto span = [](std::int64_t count) { return comm::Span{memory, count, DType::f32}; };
  switch (kind) {
    case Kind::all_gather:
      return {.kind = kind, .in = span(n), .out = span(n * size)};
    case Kind::reduce_scatter:
      return {.kind = kind, .in = span(n * size), .out = span(n)};
    case Kind::all_to_all:
      return {.kind = kind, .in = span(n * size), .out = span(n * size)};
    case Kind::transfer:
      return rank == 0 ? Operation::send(span(n)) : Operation::receive(span(n));
    default:
      return {.kind = kind, .in = span(n), .out = span(n), .root = size - 1};
  }
}

/// Sizes of the messages from a to b, in order, as one of the two lists them.
using Messages = std::map<std::pair<int, int>, std::vector<std::size_t>>;

TEST(RoundPlan, HasBothEndsListTheSameMessagesInTheSameOrder) {
  for (const Kind kind :
       {Kind::all_gather, Kind::reduce_scatter, Kind::all_reduce, Kind::all_to_all, Kind::broadcast, Kind::transfer}) {
    for (int size = 1; size <= 8; ++size) {
      if (kind == Kind::transfer && size != 2) continue;
      for (const std::int64_t n : {0, 1, 5, 16'383, 16'384, 262'145, 2'100'003}) {
        Messages sent, received;
        std::int64_t largest = 0;
        for (int rank = 0; rank < size; ++rank) {
          std::vector<std::byte> scratch;
          const RoundPlan plan(operation(kind, n, rank, size), rank, size, scratch);
          for (int round = 0; round < plan.rounds(); ++round) {
            for (const Flow& flow : plan.flows(round)) {
              largest = std::max<std::int64_t>(largest, static_cast<std::int64_t>(flow.bytes));
              ASSERT_NE(flow.peer, rank);
              if (flow.direction == Flow::Direction::out)
                sent[{rank, flow.peer}].push_back(flow.bytes);
              else
                received[{flow.peer, rank}].push_back(flow.bytes);
            }
          }
        }
        EXPECT_EQ(sent, received) << name_of(kind) << " of " << n << " over " << size;
        EXPECT_LE(largest, static_cast<std::int64_t>(RoundPlan::kPieceBytes));
        EXPECT_EQ(sent.empty(), n == 0 || size == 1);
      }
    }
  }
}

TEST(RoundPlan, MovesNoMoreThanARingWould) {
  for (const Kind kind : {Kind::all_gather, Kind::reduce_scatter, Kind::all_reduce}) {
    constexpr int kSize = 4;
    constexpr std::int64_t kCount = 1'000'000;
    std::vector<std::byte> scratch;
    const RoundPlan plan(operation(kind, kCount, 1, kSize), 1, kSize, scratch);
    std::size_t out = 0;
    for (int round = 0; round < plan.rounds(); ++round) {
      for (const Flow& flow : plan.flows(round)) out += flow.direction == Flow::Direction::out ? flow.bytes : 0;
    }
    EXPECT_EQ(out, kind == Kind::all_reduce ? 2 * (kSize - 1) * kCount / kSize * 4 : (kSize - 1) * kCount * 4)
        << name_of(kind);
  }
}

TEST(RoundPlan, BoundsItsScratchByPiecesInFlight) {
  std::vector<std::byte> scratch;
  const RoundPlan plan(operation(Kind::reduce_scatter, 10'000'000, 0, 8), 0, 8, scratch);
  EXPECT_EQ(scratch.size(), RoundPlan::kInFlight * 8 * RoundPlan::kPieceBytes);
}

TEST(RoundPlan, SharesSumsOnlyAfterAllAreMade) {
  std::vector<std::byte> scratch;
  const RoundPlan plan(operation(Kind::all_reduce, 4'000'000, 0, 2), 0, 2, scratch);
  int fresh = 0;
  for (int round = 0; round < plan.rounds(); ++round) fresh += plan.starts_afresh(round);
  EXPECT_EQ(plan.rounds(), 16);
  EXPECT_EQ(fresh, 1);
  EXPECT_TRUE(plan.starts_afresh(8));
}

}  // namespace
}  // namespace orthant::tests
