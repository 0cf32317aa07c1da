// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/cuda/nccl_group.hpp>

#include <utility>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>

namespace orthant::cuda {

NcclGroup::NcclGroup(Driver& driver, EventRelay& relay, Communicator communicator, std::string where)
    : driver_(driver), relay_(relay), communicator_(communicator), where_(std::move(where)) {}

DeviceStream NcclGroup::own_stream() {
  if (!own_stream_) {
    own_stream_ = driver_.create_stream(Priority::high);
    default_event_ = driver_.create_event();
  }
  driver_.enqueue({}, Record{default_event_});
  driver_.enqueue(own_stream_, WaitFor{default_event_});
  return own_stream_;
}

comm::Work NcclGroup::run(const comm::Operation& operation, const std::function<void(DeviceStream)>& enqueue) {
  std::unique_lock lock(mutex_);
  const std::string description = last_ = describe(operation, sequence_++, where_);
  const auto aborted = aborted_;
  lock.unlock();

  const stream::Promise promise(description);
  if (aborted) {
    promise.complete(std::make_exception_ptr(CommError(fmt::format("{}: {}", description, *aborted))));
    return promise.work();
  }
  try {
    const DeviceStream current = driver_.current_stream();
    const DeviceStream stream = current ? current : own_stream();
    enqueue(stream);
    if (current) {
      promise.complete();
    } else {
      relay_.after(stream, [promise](std::exception_ptr lost) { promise.complete(lost); });
    }
  } catch (const CommError& error) {
    promise.complete(std::make_exception_ptr(CommError(fmt::format("{}: {}", description, error.what()))));
  }
  return promise.work();
}

void NcclGroup::abort(const std::string& why) noexcept {
  {
    const std::lock_guard guard(mutex_);
    if (aborted_) return;
    aborted_ = why;
  }
  driver_.abort(communicator_);
}

void NcclGroup::check() {
  const std::lock_guard guard(mutex_);
  if (aborted_) return;
  const auto error = driver_.async_error(communicator_);
  if (error) throw CommError(fmt::format("{}: {}; last operation: {}", where_, *error, last_));
}

}  // namespace orthant::cuda
