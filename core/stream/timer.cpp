// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/stream/timer.hpp>

#include <utility>

#include <sys/prctl.h>

namespace orthant::stream {
namespace {

/// Linux wakes a sleeper up to 50 us late, unless it asks otherwise.
void ask_for_exact_wake_ups() {
  thread_local const bool asked = [] {
    ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    return true;
  }();
  static_cast<void>(asked);
}

}  // namespace

Timer::Timer() : thread_([this] { run(); }) {}

Timer::~Timer() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Timer::at(Clock::time_point time, std::function<void()> call) {
  const std::lock_guard lock(mutex_);
  const auto entry = due_.emplace(time, std::move(call));
  if (entry == due_.begin()) changed_.notify_all();
}

void Timer::run() {
  ask_for_exact_wake_ups();
  std::unique_lock lock(mutex_);
  while (!closing_) {
    if (due_.empty()) {
      changed_.wait(lock);
    } else if (const auto first = due_.begin()->first; first > Clock::now()) {
      changed_.wait_until(lock, first);
    } else {
      const auto call = std::move(due_.begin()->second);
      due_.erase(due_.begin());
      lock.unlock();
      call();
      lock.lock();
    }
  }
}

void sleep_until(Clock::time_point time) {
  ask_for_exact_wake_ups();
  std::this_thread::sleep_until(time);
}

}  // namespace orthant::stream
