// SPDX-License-Identifier: Apache-2.0
// Learning rates as pure functions of the step, so that a resumed run needs no schedule state.
//
//   peak      ____________              warm-up: straight up, the full rate at step `warmup`
//            /            \_            constant, linear, cosine: from there to the end
//   ratio   /               \__         wsd: stays up, then straight down over the last `decay` steps
#pragma once

#include <cstdint>

namespace orthant::optim {

enum class LrKind : std::uint8_t { constant, linear, cosine, wsd };

struct LrSchedule {
  LrKind kind = LrKind::cosine;
  double peak = 1e-3;
  std::int64_t warmup = 0;  ///< steps
  std::int64_t decay = 0;   ///< steps, wsd only
  double min_ratio = 0.0;   ///< the rate decays towards peak * min_ratio
};

/// step is 1-based and at most total. The first step after the warm-up has the full rate, and decay would reach
/// min_ratio at step total + 1, so that no step is wasted at rate 0.
double lr_at(const LrSchedule& schedule, std::int64_t step, std::int64_t total);

}  // namespace orthant::optim
