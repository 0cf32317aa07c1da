// SPDX-License-Identifier: Apache-2.0
// EventRelay: one thread on which the host goes on when a device has come to a certain point, or when an operation of
// another thread (MPI's, a peer's) has completed. CUDA forbids its calls inside its own host callbacks, so events are
// polled.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include <orthant/core/cuda/event_pool.hpp>

namespace orthant::cuda {

class EventRelay {
 public:
  /// Null: all is well. Must not throw.
  using Next = std::function<void(std::exception_ptr)>;

  explicit EventRelay(StreamDriver& driver);
  /// What still waits runs with a CommError.
  ~EventRelay();

  /// Runs `next` once the device has done all that is on the stream now. For one stream, in the order of calls.
  void after(DeviceStream stream, Next next);
  /// Runs `step` soon.
  void post(std::function<void()> step);

 private:
  struct Waiting {
    DeviceStream stream;
    Event event;
    Next next;
  };
  void run();
  /// One look at every event; true if any was complete.
  bool poll();

  static constexpr std::chrono::microseconds kPoll{20};

  StreamDriver& driver_;
  EventPool events_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> posted_;
  std::deque<Waiting> arrived_;
  bool closing_ = false;
  std::deque<Waiting> waiting_;  ///< the relay's thread only
  std::thread thread_;
};

}  // namespace orthant::cuda
