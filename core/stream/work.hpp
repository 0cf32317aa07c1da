// SPDX-License-Identifier: Apache-2.0
// Work: the handle of something asynchronous on the host. Whoever performs it holds the Promise and completes it once,
// from any thread. Callbacks run on the completing thread and outside every lock of this class; they must not block.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>

namespace orthant::stream {

using Clock = std::chrono::steady_clock;

class [[nodiscard]] Work {
 public:
  using Callback = std::function<void(std::exception_ptr)>;
  /// A work that is done already.
  static Work done();

  /// Runs `callback` once, when the work is complete (at once if it already is). At most one callback.
  void then(Callback callback);
  /// Waits; rethrows what the performer reported. Throws CommError, naming the operation, when `timeout` runs out.
  void wait(std::chrono::milliseconds timeout);
  bool is_done() const;
  const std::string& description() const;

 private:
  friend class Promise;
  struct State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

class Promise {
 public:
  /// description  names operation, axis, peers and sequence number; it stands in the message when a wait expires.
  explicit Promise(std::string description);
  Work work() const { return Work(state_); }
  /// Completes the work; `error` null means success. Later calls are ignored.
  void complete(std::exception_ptr error = nullptr) const;

 private:
  std::shared_ptr<Work::State> state_;
};

}  // namespace orthant::stream
