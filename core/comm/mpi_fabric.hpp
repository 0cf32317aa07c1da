// SPDX-License-Identifier: Apache-2.0
// Ranks are processes, connected by MPI. One progress thread per rank makes every call to MPI, from MPI_Init to
// MPI_Finalize; other threads only hand it operations. At most one in a process.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <orthant/core/comm/fabric.hpp>

namespace orthant::comm {

struct MpiOptions {
  /// doorbell: ranks of one host wake each other through shared memory. polling: sleeps of 5 to 200 us; to compare, and
  /// for debugging.
  enum class Wake : std::uint8_t { doorbell, polling };
  Wake wake = Wake::doorbell;
  /// Every send is an MPI_Issend, which ends only when its receive has begun: the strictest transport, for tests.
  bool synchronous_sends = false;
  /// For what blocks inside MPI: its start, the making of a communicator, its end.
  std::chrono::milliseconds blocking_timeout{120'000};
};

class MpiFabric final : public Fabric {
 public:
  /// Starts MPI. Collective over all ranks. Throws CommError.
  explicit MpiFabric(MpiOptions options = {});
  /// Finalizes MPI, where all ranks meet: barrier() first if they may be far apart. After abort() it is kill(6), since
  /// MPI cannot be left in an orderly way; so a rank that gives up reports and calls kill() itself, before this runs.
  /// Outlives what it made.
  ~MpiFabric() override;

  int rank() const override;
  int size() const override;
  std::unique_ptr<Collectives> make_collectives(const std::string& name, std::span<const int> members) override;
  std::unique_ptr<Channel> make_channel(const std::string& name, int source, int destination) override;
  void abort(const std::string& why) noexcept override;

  /// It is over because another rank aborted, so that one knows why.
  bool heard_abort() const;

  /// Requests of this rank that MPI has not ended: 0 when nothing is under way.
  std::int64_t open_requests() const;

  /// Ends all ranks of the run at once; the launcher passes `exit_code` on.
  [[noreturn]] void kill(int exit_code) noexcept;

  class Core;

 private:
  std::unique_ptr<Core> core_;
};

}  // namespace orthant::comm
