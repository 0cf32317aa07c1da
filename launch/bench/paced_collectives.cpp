// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/bench/paced_collectives.hpp>

#include <chrono>

namespace orthant::launch {

stream::Work PacedCollectives::paced(double duration_us, const std::function<stream::Work()>& start) {
  using Microseconds = std::chrono::duration<double, std::micro>;
  using stream::Clock;
  const auto begin_us = std::make_shared<double>(Microseconds(Clock::now().time_since_epoch()).count());
  const stream::Promise ended("paced collective on " + name());
  below_->all_reduce({begin_us.get(), 1, DType::f64}, comm::Reduction::max).then([begin_us](std::exception_ptr) {});
  // Operations of one communicator complete in order: once this one has, all ranks' posts are known.
  start().then([this, begin_us, duration_us, ended](std::exception_ptr error) {
    if (error) return ended.complete(error);
    const auto end = std::chrono::duration_cast<Clock::duration>(Microseconds(*begin_us + duration_us));
    timer_.at(Clock::time_point(end), [ended] { ended.complete(); });
  });
  return ended.work();
}

}  // namespace orthant::launch
