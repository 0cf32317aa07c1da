// SPDX-License-Identifier: Apache-2.0
// Result<T>: a value, or the reason why there is none. For failures that are answers; g++ 12 has no std::expected in
// C++20.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace orthant {

struct Failure {
  std::string why;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}            // NOLINT: implicit on purpose
  Result(Failure failure) : state_(std::move(failure)) {}  // NOLINT: implicit on purpose

  explicit operator bool() const { return state_.index() == 0; }
  const T& operator*() const { return std::get<0>(state_); }
  T& operator*() { return std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  const std::string& why() const { return std::get<1>(state_).why; }

 private:
  std::variant<T, Failure> state_;
};

}  // namespace orthant
