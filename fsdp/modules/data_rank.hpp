// SPDX-License-Identifier: Apache-2.0
// DataRank: what a rank needs where data parallelism over all ranks of the fabric is all there is: communicators and a
// scheduler on the CPU.
#pragma once

#include <memory>

#include <orthant/core/comm/fabric.hpp>
#include <orthant/core/stream/cpu_scheduler.hpp>
#include <orthant/fsdp/engine.hpp>

namespace orthant::fsdp {

struct DataRankOptions {
  int shard_degree = 0;  ///< hybrid sharding: so many consecutive ranks share one copy; 0: all ranks
  stream::CpuSchedulerOptions scheduler = {};  ///< on_failure is taken: it aborts the fabric
};

class DataRank {
 public:
  /// Collective over all ranks. The fabric outlives this.
  /// Throws  ConfigError when the shard degree does not divide the number of ranks.
  explicit DataRank(comm::Fabric& fabric, DataRankOptions options = {});

  stream::CpuScheduler& scheduler() { return scheduler_; }
  const Lanes& lanes() const { return lanes_; }

 private:
  std::unique_ptr<comm::Collectives> gather_, reduce_, replica_;
  stream::CpuScheduler scheduler_;  ///< goes before the communicators
  Lanes lanes_;
};

}  // namespace orthant::fsdp
