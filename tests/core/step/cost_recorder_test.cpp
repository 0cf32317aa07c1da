// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/step/cost_recorder.hpp>

#include <gtest/gtest.h>

namespace orthant::step {
namespace {

TEST(CostRecorder, SplitsAWholeBackwardByWhatItsWeightGradientsTook) {
  CostRecorder recorder;
  recorder.add(LayerId{1}, Phase::forward, 10, 0);
  recorder.add(LayerId{1}, Phase::backward, 30, 12);
  recorder.add(LayerId{2}, Phase::forward, 11, 0);
  recorder.add(LayerId{2}, Phase::backward_input, 7, 0);
  recorder.add(LayerId{2}, Phase::backward_weight, 5, 0);
  recorder.add(LayerId{3}, Phase::forward, 1, 0);
  const auto medians = recorder.medians();
  ASSERT_EQ(medians.size(), 2u) << "layer 3 never ran backward";
  EXPECT_EQ(medians.at(LayerId{1}).forward_us, 10);
  EXPECT_EQ(medians.at(LayerId{1}).input_us, 18);
  EXPECT_EQ(medians.at(LayerId{1}).weight_us, 12);
  EXPECT_EQ(medians.at(LayerId{2}).input_us, 7);
  EXPECT_EQ(medians.at(LayerId{2}).weight_us, 5);
}

TEST(CostRecorder, KeepsTheLatestSamplesAndIgnoresOutliers) {
  CostRecorder recorder;
  for (int i = 0; i < 1000; ++i) recorder.add(LayerId{0}, Phase::backward, 1000, 500);
  for (int i = 0; i < 256; ++i) recorder.add(LayerId{0}, Phase::backward, i % 10 == 0 ? 9000 : 20, 5);
  EXPECT_EQ(recorder.medians().at(LayerId{0}).input_us, 15);
}

}  // namespace
}  // namespace orthant::step
