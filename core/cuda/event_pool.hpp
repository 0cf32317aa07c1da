// SPDX-License-Identifier: Apache-2.0
// EventPool: events to use again. An event may come back as soon as nobody will ask for it any more; a WaitFor that is
// enqueued already keeps meaning the Record that it saw.
#pragma once

#include <mutex>
#include <vector>

#include <orthant/core/cuda/driver.hpp>

namespace orthant::cuda {

class EventPool {
 public:
  explicit EventPool(StreamDriver& driver) : driver_(driver) {}

  Event take() {
    {
      const std::lock_guard guard(mutex_);
      if (!free_.empty()) {
        const Event event = free_.back();
        free_.pop_back();
        return event;
      }
    }
    return driver_.create_event();
  }
  void give_back(Event event) {
    const std::lock_guard guard(mutex_);
    free_.push_back(event);
  }

 private:
  StreamDriver& driver_;
  std::mutex mutex_;
  std::vector<Event> free_;
};

}  // namespace orthant::cuda
