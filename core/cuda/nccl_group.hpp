// SPDX-License-Identifier: Apache-2.0
// NcclGroup: one NCCL communicator with its name, its count of operations and its end. Shared by the Collectives or
// Channel that uses it and by the fabric, which aborts it and asks for its errors.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include <orthant/core/comm/operation.hpp>
#include <orthant/core/cuda/driver.hpp>
#include <orthant/core/cuda/event_relay.hpp>

namespace orthant::cuda {

class NcclGroup {
 public:
  /// communicator  just made; aborted, which is local, by the destructor
  NcclGroup(Driver& driver, EventRelay& relay, Communicator communicator, std::string where);
  ~NcclGroup() { driver_.abort(communicator_); }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  Communicator communicator() const { return communicator_; }
  Driver& driver() const { return driver_; }

  /// Calls `enqueue` with the current stream. The work fails, naming operation, number and communicator, if the group
  /// is aborted or the driver throws CommError. Within a task it is complete at once; outside, it runs on a stream of
  /// the group's own and is complete when the device is done.
  comm::Work run(const comm::Operation& operation, const std::function<void(DeviceStream)>& enqueue);

  /// Any thread; never blocks. Operations on the device end, later ones fail with CommError(why).
  void abort(const std::string& why) noexcept;
  /// Throws CommError, naming communicator and last operation, after an asynchronous error.
  void check();

 private:
  /// What follows on it waits for what stands on the default stream now.
  DeviceStream own_stream();

  Driver& driver_;
  EventRelay& relay_;
  const Communicator communicator_;
  DeviceStream own_stream_;  ///< outside tasks: operations of different communicators must not stand behind each other
  Event default_event_;
  const std::string where_;
  std::mutex mutex_;
  std::int64_t sequence_ = 0;
  std::string last_ = "no operation yet";
  std::optional<std::string> aborted_;
};

}  // namespace orthant::cuda
