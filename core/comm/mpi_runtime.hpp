// SPDX-License-Identifier: Apache-2.0
// What a rank has from MPI besides its communicators: the start and the end, the doorbells in the host's shared memory,
// and the word that somebody aborted. All functions run on the progress thread and may block, except where they say
// otherwise.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <mpi.h>

#include <orthant/core/comm/doorbell.hpp>

namespace orthant::comm {

class MpiRuntime {
 public:
  /// Collective over all ranks. Throws CommError.
  void start();
  /// One doorbell per rank of this host, in shared memory. Collective over all ranks.
  void share_bells();
  /// Collective over all ranks.
  void finish();

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Per world rank; null where it is on another host, or before share_bells().
  const std::vector<Doorbell*>& bells() const { return bells_; }
  bool rings_everyone() const;

  /// Collective over `members`, world ranks, in the order of `tag`s.
  MPI_Comm make_communicator(std::span<const int> members, int tag, const std::string& where) const;

  /// Tells every other rank why this one gives up. Waits at most a moment for the messages to leave.
  void tell_abort(const std::string& why);
  /// What another rank said when it gave up, once. Never blocks.
  std::optional<std::string> heard_abort();

 private:
  int rank_ = 0;
  int size_ = 1;
  MPI_Comm abort_comm_ = MPI_COMM_NULL;
  MPI_Request abort_request_ = MPI_REQUEST_NULL;
  std::array<char, 1024> abort_text_{};
  MPI_Comm host_comm_ = MPI_COMM_NULL;
  MPI_Win bell_window_ = MPI_WIN_NULL;
  std::vector<Doorbell*> bells_;
};

}  // namespace orthant::comm
