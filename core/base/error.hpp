// SPDX-License-Identifier: Apache-2.0
// What ends a run is an exception of one of these types, and each has its exit code. A failure that is a legitimate
// answer
// ("does it fit?", "is there a checkpoint?") is a Result<T> instead. Messages say: found, wanted, remedy.
#pragma once

#include <stdexcept>
#include <string>

namespace orthant {

/// Exit codes of every orthant command.
enum class ExitCode : int {
  done = 0,
  internal = 1,
  config = 2,
  data = 3,
  checkpoint = 4,
  non_finite = 5,
  timed_out = 6,
  replicas_differ = 7,
  interrupted = 75,  ///< state was saved; asks to be started again
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  ExitCode exit_code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

/// The configuration or the command line is wrong: the user's to mend.
struct ConfigError : Error {
  explicit ConfigError(const std::string& what) : Error(ExitCode::config, what) {}
};
/// A data or tokenizer file is missing, damaged or does not fit the model.
struct DataError : Error {
  explicit DataError(const std::string& what) : Error(ExitCode::data, what) {}
};
/// Weights or a checkpoint cannot be read or written.
struct CheckpointError : Error {
  explicit CheckpointError(const std::string& what) : Error(ExitCode::checkpoint, what) {}
};
/// Loss or gradients are no longer finite.
struct NonFiniteError : Error {
  explicit NonFiniteError(const std::string& what) : Error(ExitCode::non_finite, what) {}
};
/// A peer failed, or a message did not arrive before its deadline.
struct CommError : Error {
  explicit CommError(const std::string& what) : Error(ExitCode::timed_out, what) {}
};
/// What several ranks must hold alike has become different.
struct ReplicaError : Error {
  explicit ReplicaError(const std::string& what) : Error(ExitCode::replicas_differ, what) {}
};
/// A tensor does not have the shape that a function documents.
struct ShapeError : Error {
  explicit ShapeError(const std::string& what) : Error(ExitCode::internal, what) {}
};
/// A broken invariant: our bug, never the user's.
struct InternalError : Error {
  explicit InternalError(const std::string& what) : Error(ExitCode::internal, what) {}
};

/// Throws InternalError unless `condition`. Use for invariants, not for input.
inline void invariant(bool condition, const char* why) {
  if (!condition) throw InternalError(why);
}

}  // namespace orthant
