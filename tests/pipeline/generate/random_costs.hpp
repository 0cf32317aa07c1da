// SPDX-License-Identifier: Apache-2.0
// Random sizes and costs for property tests of schedules. Costs are small whole numbers, so that sums of doubles are
// exact and formulas hold with ==.
#pragma once

#include <random>

#include <orthant/pipeline/cost/costs.hpp>

namespace orthant::pipeline {

inline int random_int(std::mt19937& random, int least, int most) {
  return std::uniform_int_distribution(least, most)(random);
}

inline StageCosts random_stage(std::mt19937& random, int least = 1, int most = 40) {
  const auto cost = [&] { return 1.0 * random_int(random, least, most); };
  return {.forward = cost(), .input = cost(), .weight = cost()};
}

inline double sum(const StageCosts& stage) { return stage.forward + stage.input + stage.weight; }

}  // namespace orthant::pipeline
