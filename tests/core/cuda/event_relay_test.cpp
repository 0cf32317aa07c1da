// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include <orthant/core/base/error.hpp>
#include <orthant/core/cuda/event_relay.hpp>
#include <orthant/core/cuda/recording_driver.hpp>
#include <orthant/core/stream/work.hpp>

namespace orthant::cuda {
namespace {

using namespace std::chrono_literals;

/// A device whose first event is passed late, but before the second: the host may look at the first too early and at
/// the second in time.
class LateDevice final : public StreamDriver {
 public:
  DeviceStream create_stream(Priority) override { return {}; }
  Event create_event() override { return {&marks_[made_++]}; }
  void enqueue(DeviceStream, const Command&) override {}
  bool is_complete(Event event) override { return event.raw == &marks_[1] || ++looks_ > 100; }

 private:
  char marks_[2] = {};
  int made_ = 0;
  int looks_ = 0;
};

TEST(EventRelay, KeepsTheOrderOfAStream) {
  LateDevice device;
  EventRelay relay(device);
  std::vector<int> order;  // the relay's thread
  const stream::Promise both("both");
  const auto next = [&](int index) {
    return [&, index](std::exception_ptr) {
      order.push_back(index);
      if (order.size() == 2) both.complete();
    };
  };
  relay.after({}, next(0));
  relay.after({}, next(1));
  both.work().wait(10s);
  EXPECT_EQ(order, (std::vector<int>{0, 1}));
}

TEST(EventRelay, FailsWhatStillWaitsWhenItEnds) {
  RecordingDriver driver({.by_hand = true});
  const stream::Promise promise("open");
  {
    EventRelay relay(driver);
    relay.after({}, [&](std::exception_ptr lost) { promise.complete(lost); });
  }
  EXPECT_THROW(promise.work().wait(1ms), CommError);
}

}  // namespace
}  // namespace orthant::cuda
