// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/cuda/event_relay.hpp>

#include <algorithm>
#include <utility>
#include <vector>

#include <orthant/core/base/error.hpp>

namespace orthant::cuda {

EventRelay::EventRelay(StreamDriver& driver) : driver_(driver), events_(driver), thread_([this] { run(); }) {}

EventRelay::~EventRelay() {
  {
    const std::lock_guard guard(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void EventRelay::after(DeviceStream stream, Next next) {
  const Event event = events_.take();
  driver_.enqueue(stream, Record{event});
  const std::lock_guard guard(mutex_);
  arrived_.push_back({stream, event, std::move(next)});
  changed_.notify_one();
}

void EventRelay::post(std::function<void()> step) {
  const std::lock_guard guard(mutex_);
  posted_.push_back(std::move(step));
  changed_.notify_one();
}

void EventRelay::run() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    auto posted = std::exchange(posted_, {});
    for (Waiting& waiting : std::exchange(arrived_, {})) waiting_.push_back(std::move(waiting));
    lock.unlock();
    const bool moved = !posted.empty();
    for (auto& step : posted) std::exchange(step, nullptr)();
    const bool complete = poll();
    lock.lock();
    if (moved || complete) continue;
    const auto news = [&] { return closing_ || !posted_.empty() || !arrived_.empty(); };
    if (waiting_.empty()) {
      changed_.wait(lock, news);
    } else {
      changed_.wait_for(lock, kPoll, news);
    }
  }
  const auto posted = std::exchange(posted_, {});
  lock.unlock();
  for (const auto& step : posted) step();  // may call after() once more
  lock.lock();
  for (Waiting& waiting : std::exchange(arrived_, {})) waiting_.push_back(std::move(waiting));
  lock.unlock();
  const auto closed = std::make_exception_ptr(CommError("the fabric was destroyed while this operation was open"));
  for (Waiting& waiting : waiting_) waiting.next(closed);
}

// An event that completes while we look does not overtake an earlier one of its stream.
bool EventRelay::poll() {
  std::deque<Waiting> complete;
  std::vector<DeviceStream> blocked;
  std::exception_ptr error;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    bool done = false;
    try {
      done = std::ranges::find(blocked, it->stream) == blocked.end() && driver_.is_complete(it->event);
    } catch (...) {  // the device is lost
      error = std::current_exception();
      done = true;
    }
    if (done) {
      complete.push_back(std::move(*it));
      it = waiting_.erase(it);
    } else {
      blocked.push_back(it->stream);
      ++it;
    }
  }
  for (Waiting& waiting : complete) {
    events_.give_back(waiting.event);
    waiting.next(error);
  }
  return !complete.empty();
}

}  // namespace orthant::cuda
