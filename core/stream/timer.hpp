// SPDX-License-Identifier: Apache-2.0
// Timer: calls functions at given times, on a thread of its own. For emulated links and injected delays.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include <orthant/core/stream/work.hpp>

namespace orthant::stream {

class Timer {
 public:
  Timer();
  /// What is still due is not called.
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  /// `call` must not block.
  void at(Clock::time_point time, std::function<void()> call);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::multimap<Clock::time_point, std::function<void()>> due_;
  bool closing_ = false;
  std::thread thread_;
};

/// Sleeps until then, with the smallest timer slack that the system grants this thread.
void sleep_until(Clock::time_point time);

}  // namespace orthant::stream
