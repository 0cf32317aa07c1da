// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/stream/work.hpp>

#include <condition_variable>
#include <mutex>
#include <utility>

#include <orthant/core/base/error.hpp>

namespace orthant::stream {

struct Work::State {
  explicit State(std::string text) : description(std::move(text)) {}

  const std::string description;
  mutable std::mutex mutex;
  std::condition_variable completed;
  bool is_done = false;
  bool has_callback = false;
  std::exception_ptr error;
  Callback callback;
};

Work Work::done() {
  const Promise promise("done");
  promise.complete();
  return promise.work();
}

void Work::then(Callback callback) {
  std::exception_ptr error;
  {
    std::lock_guard lock(state_->mutex);
    if (std::exchange(state_->has_callback, true)) {
      throw InternalError("'" + state_->description + "' has a callback already; a work takes one");
    }
    if (!state_->is_done) {
      state_->callback = std::move(callback);
      return;
    }
    error = state_->error;
  }
  callback(error);
}

void Work::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(state_->mutex);
  if (!state_->completed.wait_for(lock, timeout, [&] { return state_->is_done; })) {
    throw CommError("'" + state_->description + "' did not complete within " + std::to_string(timeout.count()) + " ms");
  }
  if (state_->error) std::rethrow_exception(state_->error);
}

bool Work::is_done() const {
  std::lock_guard lock(state_->mutex);
  return state_->is_done;
}

const std::string& Work::description() const { return state_->description; }

Promise::Promise(std::string description) : state_(std::make_shared<Work::State>(std::move(description))) {}

void Promise::complete(std::exception_ptr error) const {
  const auto state = state_;  // a waiter may destroy this promise as soon as it wakes
  Work::Callback callback;
  {
    std::lock_guard lock(state->mutex);
    if (std::exchange(state->is_done, true)) return;
    state->error = error;
    callback = std::exchange(state->callback, nullptr);
  }
  state->completed.notify_all();
  if (callback) callback(error);
}

}  // namespace orthant::stream
