// SPDX-License-Identifier: Apache-2.0
// The seams through which a schedule reaches parameters without knowing who shards them. dp (stage 0) and fsdp (stages
// 1 to 3) implement both, and shard_store.hpp's. Calls only submit tasks; nothing here waits. ATen-free.
#pragma once

#include <cstdint>
#include <vector>

#include <orthant/core/base/id.hpp>
#include <orthant/core/stream/task.hpp>

namespace orthant::train {

class ParamLifecycle {
 public:
  virtual ~ParamLifecycle() = default;
  /// Submits the gather of the unit's weights; a no-op where they are whole already.
  virtual void unshard(UnitId) = 0;
  /// The unit's gathered weights are not needed any more (until the next unshard).
  virtual void reshard(UnitId) = 0;
  /// What a task that uses the unit's weights must claim as read.
  virtual stream::Claim weights(UnitId) const = 0;
};

class GradSync {
 public:
  virtual ~GradSync() = default;

  struct Claims {
    std::vector<stream::Claim> reads;
    std::vector<stream::Claim> writes;
    bool overwrite = false;  ///< first contribution since the last reduction: it replaces what the buffer holds
  };
  /// Of every training step, before its first contribution; 0-based. Which units are frozen depends on it.
  virtual void begin_step(std::int64_t step) = 0;
  /// Whether the unit has a gradient in this step. One that has not is neither contributed to nor reduced.
  virtual bool trains(UnitId) const = 0;
  /// What a task that adds to the unit's gradient must claim; called once a task, in submission order.
  virtual Claims contribute(UnitId) = 0;
  /// Submits the reduction over the data axis of what was contributed since the last one; nothing where the unit does
  /// not train.
  /// last  of the unit in this step: where weights are replicated, what was summed so far is summed over replicas.
  virtual void reduce(UnitId, bool last) = 0;
};

}  // namespace orthant::train
