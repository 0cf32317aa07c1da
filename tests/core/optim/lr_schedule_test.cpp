// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <orthant/core/optim/lr_schedule.hpp>

namespace orthant::optim {
namespace {

TEST(LrSchedule, WarmsUpInAStraightLineToThePeak) {
  for (LrKind kind : {LrKind::constant, LrKind::linear, LrKind::cosine, LrKind::wsd}) {
    const LrSchedule schedule{.kind = kind, .peak = 2.0, .warmup = 4, .decay = 5};
    EXPECT_DOUBLE_EQ(lr_at(schedule, 1, 20), 0.5);
    EXPECT_DOUBLE_EQ(lr_at(schedule, 3, 20), 1.5);
    EXPECT_DOUBLE_EQ(lr_at(schedule, 4, 20), 2.0);
    EXPECT_DOUBLE_EQ(lr_at(schedule, 5, 20), 2.0);
  }
}

TEST(LrSchedule, ConstantStays) {
  const LrSchedule schedule{.kind = LrKind::constant, .peak = 3.0};
  EXPECT_DOUBLE_EQ(lr_at(schedule, 1, 9), 3.0);
  EXPECT_DOUBLE_EQ(lr_at(schedule, 9, 9), 3.0);
}

TEST(LrSchedule, LinearAndCosineGoThroughTheMiddle) {
  // Steps 1 .. 10 after 2 of warm-up: step 7 is half of the way from step 3 to step 11.
  const LrSchedule linear{.kind = LrKind::linear, .peak = 1.0, .warmup = 2, .min_ratio = 0.2};
  EXPECT_DOUBLE_EQ(lr_at(linear, 3, 10), 1.0);
  EXPECT_DOUBLE_EQ(lr_at(linear, 7, 10), 0.6);
  EXPECT_DOUBLE_EQ(lr_at(linear, 11, 10), 0.2);
  const LrSchedule cosine{.kind = LrKind::cosine, .peak = 1.0, .warmup = 2, .min_ratio = 0.2};
  EXPECT_DOUBLE_EQ(lr_at(cosine, 7, 10), 0.6);
  EXPECT_DOUBLE_EQ(lr_at(cosine, 5, 10), 0.2 + 0.8 * (1.0 + std::sqrt(0.5)) / 2.0);  // cos(pi / 4)
  EXPECT_DOUBLE_EQ(lr_at(cosine, 11, 10), 0.2);
}

TEST(LrSchedule, WsdStaysUpAndDecaysAtTheEnd) {
  const LrSchedule schedule{.kind = LrKind::wsd, .peak = 1.0, .warmup = 2, .decay = 4, .min_ratio = 0.5};
  EXPECT_DOUBLE_EQ(lr_at(schedule, 17, 20), 1.0);
  EXPECT_DOUBLE_EQ(lr_at(schedule, 18, 20), 0.875);
  EXPECT_DOUBLE_EQ(lr_at(schedule, 20, 20), 0.625);
}

TEST(LrSchedule, NeverRisesAfterTheWarmUpAndNeverReachesTheBottom) {
  for (LrKind kind : {LrKind::linear, LrKind::cosine, LrKind::wsd}) {
    const LrSchedule schedule{.kind = kind, .peak = 1.0, .warmup = 5, .decay = 30, .min_ratio = 0.1};
    for (int step = 6; step <= 50; ++step) {
      EXPECT_LE(lr_at(schedule, step, 50), lr_at(schedule, step - 1, 50));
      EXPECT_GT(lr_at(schedule, step, 50), 0.1);
    }
  }
}

TEST(LrSchedule, AWarmUpLongerThanTheRunIsLegal) {
  const LrSchedule schedule{.kind = LrKind::cosine, .peak = 1.0, .warmup = 100};
  EXPECT_DOUBLE_EQ(lr_at(schedule, 10, 10), 0.1);
}

}  // namespace
}  // namespace orthant::optim
