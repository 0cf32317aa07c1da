// SPDX-License-Identifier: Apache-2.0
// Where ranks that are threads meet: a numbered row of appointments, one per operation. The last member to arrive at an
// appointment performs it for all. A channel is a meeting of two, so a send is done only when the receiver has the
// data. Nothing is copied and nobody is told while a lock is held.
#pragma once

#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <orthant/core/comm/operation.hpp>

namespace orthant::comm {

class Meeting {
 public:
  /// members  world ranks, ascending
  Meeting(std::string name, std::vector<int> members);

  const std::string& name() const { return name_; }
  const std::vector<int>& members() const { return members_; }

  /// Takes the member's seat at its next appointment; performs it if that was the last empty one. Never waits. If the
  /// members' operations do not match, the meeting is over: everything open and later fails with a CommError that names
  /// both ranks and both operations. member  position in the group (channels: 0 sends, 1 receives)
  Work arrive(int member, const Operation&);

  /// Fails open and later operations with CommError(why).
  void abort(const std::string& why);

  /// One line per open appointment: the operation, who is there and who is missing.
  std::vector<std::string> open() const;

 private:
  struct Seat {
    Operation operation;
    stream::Promise promise;
  };
  struct Appointment {
    std::vector<std::optional<Seat>> seats;
    std::size_t arrived = 0;
  };
  using Guard = std::unique_lock<std::mutex>;

  void serve(Guard&);
  void fail(Guard&, const std::string& why);

  const std::string name_;
  const std::vector<int> members_;
  const std::string where_;

  mutable std::mutex mutex_;
  std::vector<std::int64_t> next_;  ///< per member: number of its next appointment
  std::int64_t first_open_ = 0;     ///< number of open_.front()
  std::deque<Appointment> open_;    ///< somebody is missing
  std::deque<Appointment> ready_;   ///< everybody is there
  bool serving_ = false;            ///< a thread works through ready_: keeps the order, and callbacks from nesting
  std::optional<std::string> over_;
};

}  // namespace orthant::comm
