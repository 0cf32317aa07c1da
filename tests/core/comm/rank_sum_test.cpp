// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/rank_sum.hpp>

#include "sample.hpp"

namespace orthant::tests {
namespace {

using comm::Into;
using comm::reduce_rows;
using comm::Reduction;

template <class T>
class RankSumOf : public testing::Test {};
using Types = testing::Types<Bf16, float, double, std::int64_t>;
TYPED_TEST_SUITE(RankSumOf, Types);

TYPED_TEST(RankSumOf, AddsInRankOrderWithTheSameBitsAtAnyOffset) {
  using T = TypeParam;
  constexpr int kRanks = 5;
  constexpr std::int64_t kCount = 2500;  // more than two blocks
  std::vector<std::vector<T>> rows;
  for (int r = 0; r < kRanks; ++r) rows.push_back(values<T>(r, 0, kCount + 64));
  for (std::int64_t offset = 0; offset < 64; ++offset) {
    std::vector<const void*> at;
    for (const auto& row : rows) at.push_back(row.data() + offset);
    std::vector<T> out(kCount);
    reduce_rows(at, kType<T>, span_of(out));
    for (std::int64_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(out[static_cast<std::size_t>(i)], Element<T>::store(serial_sum<T>(kRanks, offset + i)))
          << offset << " " << i;
    }
  }
}

TEST(RankSum, ShowsTheOrderOfRanks) {  // (1 + 1e8) - 1e8 = 0 and (1e8 - 1e8) + 1 = 1: the test values would not do if
                                       // these were equal
  const float one = 1, big = 1e8F, minus = -1e8F;
  const void* forward[] = {&one, &big, &minus};
  const void* other[] = {&big, &minus, &one};
  float a = -1, b = -1;
  reduce_rows(forward, DType::f32, {&a, 1, DType::f32});
  reduce_rows(other, DType::f32, {&b, 1, DType::f32});
  EXPECT_EQ(a, 0.0F);
  EXPECT_EQ(b, 1.0F);
}

TEST(RankSum, RoundsBf16Once) {  // 1 + 8 x 2^-8: each addend alone would be rounded away
  const std::uint16_t one = float_to_bf16(1.0F), small = float_to_bf16(0x1p-8F);
  std::vector<const void*> rows(9, &small);
  rows[0] = &one;
  std::uint16_t rounded = 0;
  float kept = 0.5F;
  reduce_rows(rows, DType::bf16, {&rounded, 1, DType::bf16});
  reduce_rows(rows, DType::bf16, {&kept, 1, DType::f32}, Reduction::sum, Into::accumulate);
  EXPECT_EQ(bf16_to_float(rounded), 1.0F + 0x1p-5F);
  EXPECT_EQ(kept, 1.5F + 0x1p-5F);
}

TEST(RankSum, MayWriteIntoOneOfItsRows) {
  auto a = values<float>(0, 0, 3000), b = values<float>(1, 0, 3000), separate = a;
  const void* rows[] = {a.data(), b.data()};
  reduce_rows(rows, DType::f32, span_of(separate));
  reduce_rows(rows, DType::f32, span_of(b));
  EXPECT_EQ(b, separate);
}

TEST(RankSum, KeepsNaNUnderMaxAndMin) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), two = 2, three = 3;
  for (const Reduction op : {Reduction::max, Reduction::min}) {
    for (int place = 0; place < 3; ++place) {
      const void* rows[] = {&two, &three, &two};
      rows[place] = &nan;
      float out = 0;
      reduce_rows(rows, DType::f32, {&out, 1, DType::f32}, op);
      EXPECT_TRUE(std::isnan(out)) << place;
    }
  }
}

TEST(RankSum, RejectsTypesThatItCannotAdd) {
  float out = 0;
  const void* rows[] = {&out};
  EXPECT_THROW(reduce_rows(rows, DType::u8, {&out, 1, DType::u8}), InternalError);
  EXPECT_THROW(reduce_rows(rows, DType::f32, {&out, 1, DType::f64}), InternalError);
  EXPECT_THROW(reduce_rows(rows, DType::bf16, {&out, 1, DType::bf16}, Reduction::sum, Into::accumulate), InternalError);
}

}  // namespace
}  // namespace orthant::tests
