// SPDX-License-Identifier: Apache-2.0
// A thread that performs posted operations in random order, as a network would: what the scheduler's tests complete
// works with.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <orthant/core/stream/work.hpp>

namespace orthant::stream {

class Performer {
 public:
  explicit Performer(unsigned seed) : random_(seed), thread_([this] { run(); }) {}
  ~Performer() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  /// Runs `effect` at some time on the performer's thread, then completes the returned work.
  Work post(std::function<void()> effect) {
    const Promise promise("posted operation");
    {
      std::lock_guard lock(mutex_);
      open_.emplace_back(promise, std::move(effect));
    }
    changed_.notify_one();
    return promise.work();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return closed_ || !open_.empty(); });
      if (open_.empty()) return;
      std::swap(open_[random_() % open_.size()], open_.back());
      auto [promise, effect] = std::move(open_.back());
      open_.pop_back();
      const bool pauses = random_() % 4 == 0;
      lock.unlock();
      if (pauses) std::this_thread::yield();
      effect();
      promise.complete();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<Promise, std::function<void()>>> open_;
  bool closed_ = false;
  std::mt19937 random_;
  std::thread thread_;  // last: begins when the rest exists
};

}  // namespace orthant::stream
