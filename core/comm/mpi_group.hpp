// SPDX-License-Identifier: Apache-2.0
// One MPI communicator and the operations that are under way on it, one after the other. An operation is its RoundPlan,
// carried out with MPI_Isend and MPI_Irecv. Lives on the progress thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include <mpi.h>

#include <orthant/core/comm/progress_engine.hpp>
#include <orthant/core/comm/round_plan.hpp>

namespace orthant::comm {

/// Throws CommError("what: MPI's own words") unless `code` is MPI_SUCCESS.
void require_mpi(int code, const std::string& what);

/// What all groups of a rank share.
struct MpiSends {
  bool synchronous = false;            ///< MPI_Issend: a send ends only when its receive has begun
  std::atomic<std::int64_t> open = 0;  ///< requests started and not ended, of receives too
};

class MpiGroup final : public Driven {
 public:
  struct Posted {
    Operation operation;
    std::int64_t sequence = 0;
    stream::Promise promise;
  };

  /// comm     with errors returned; not freed here, since freeing is a collective
  /// members  world ranks by position in the group
  /// bells    per member; null where it is on another host
  /// sends    outlives this
  MpiGroup(MPI_Comm comm, std::string where, std::vector<int> members, std::vector<Doorbell*> bells, MpiSends& sends);

  void enqueue(Posted posted);

  bool advance() override;
  bool has_open() const override { return !queue_.empty(); }
  void fail(const std::string& why) override;

 private:
  struct Round {
    std::vector<Flow> flows;
    std::vector<MPI_Request> requests;
    std::size_t left = 0;
  };

  struct Arrival {
    int tag = 0;
    std::size_t bytes = 0;  ///< more than was wanted: by how much is not known
  };

  bool start_rounds();
  bool test_oldest_round();
  void start(const Flow&, MPI_Request&);
  void check_arrival(const Flow&, Arrival) const;
  bool finish_operation();
  std::string naming(const Flow&) const;

  MPI_Comm comm_;
  std::string where_;
  std::vector<int> members_;
  std::vector<Doorbell*> bells_;
  MpiSends& sends_;
  int rank_ = 0;

  std::deque<Posted> queue_;  ///< the first is under way
  std::optional<RoundPlan> plan_;
  std::deque<Round> rounds_;  ///< under way, oldest first
  int started_ = 0;
  int finished_ = 0;
  std::vector<std::byte> scratch_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::optional<std::string> over_;
};

}  // namespace orthant::comm
