// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/optim/lr_schedule.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace orthant::optim {
namespace {

/// How far step `step` is on the way from `start` (exclusive) to the end, in [0, 1].
double progress(std::int64_t step, std::int64_t start, std::int64_t total) {
  if (total <= start) return 0.0;
  return std::clamp(static_cast<double>(step - 1 - start) / static_cast<double>(total - start), 0.0, 1.0);
}

/// 1 at the peak, 0 at the bottom.
double height(const LrSchedule& schedule, std::int64_t step, std::int64_t total) {
  switch (schedule.kind) {
    case LrKind::constant:
      return 1.0;
    case LrKind::linear:
      return 1.0 - progress(step, schedule.warmup, total);
    case LrKind::cosine:
      return 0.5 * (1.0 + std::cos(std::numbers::pi * progress(step, schedule.warmup, total)));
    case LrKind::wsd:
      return 1.0 - progress(step, std::max(schedule.warmup, total - schedule.decay), total);
  }
  return 1.0;
}

}  // namespace

double lr_at(const LrSchedule& schedule, std::int64_t step, std::int64_t total) {
  if (step <= schedule.warmup) return schedule.peak * static_cast<double>(step) / static_cast<double>(schedule.warmup);
  return schedule.peak * (schedule.min_ratio + (1.0 - schedule.min_ratio) * height(schedule, step, total));
}

}  // namespace orthant::optim
