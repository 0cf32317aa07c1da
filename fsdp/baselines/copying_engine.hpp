// SPDX-License-Identifier: Apache-2.0
// CopyingEngine: the tasks of engines whose collectives do not work in place, to be measured beside fsdp::Engine. What
// a gather brings is copied out of a landing buffer, gradients are copied into a bucket before they are reduced; both
// copies run on the communication stream and take a given time. Schedule only: messages are small and hold no model.
// Sources: Rajbhandari et al. 2020 (ZeRO); Zhao et al. 2023 (PyTorch FSDP).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <orthant/core/comm/lane.hpp>
#include <orthant/core/stream/scheduler.hpp>
#include <orthant/core/stream/timer.hpp>
#include <orthant/core/train/param_lifecycle.hpp>

namespace orthant::fsdp::baselines {

struct CopyingOptions {
  std::vector<std::string> units;  ///< their names; unit i has UnitId{i}. What is gathered and reduced together
  int slots = 2;                   ///< units that are whole at a time; unit i in slot i mod slots
  std::int64_t shard_numel = 1024;
  double copy_out_us = 0;  ///< after each gather; 0: gathers in place, without a task
  double copy_in_us = 0;   ///< before each reduction; 0: reduces in place, without a task
};

/// One reduction a step and unit. Assumes, in favour of what it stands for: all memory is there from the start (the
/// real ones allocate as they go), copies neither slow the computations down nor are slowed down by them, and a
/// gradient's slot is free as soon as it is copied.
class CopyingEngine final : public train::ParamLifecycle, public train::GradSync {
 public:
  /// Submits one task, INIT, which stands for the initial shards.
  CopyingEngine(stream::Scheduler& scheduler, comm::Lane gather, comm::Lane reduce, CopyingOptions options);

  /// Submits AG and, with copies, OUT; nothing when the slot holds these weights already.
  void unshard(UnitId) override;
  void reshard(UnitId) override;
  stream::Claim weights(UnitId) const override;
  void begin_step(std::int64_t) override {}
  bool trains(UnitId) const override { return true; }
  Claims contribute(UnitId) override;
  /// Submits RS and, with copies, IN before it.
  void reduce(UnitId, bool last) override;

  /// As train::ShardStore's.
  stream::Claim gradient(UnitId) const;
  stream::Claim next_weights(UnitId);

 private:
  using Memory = std::shared_ptr<std::vector<float>>;
  struct Buffer {
    Memory memory;
    stream::BufferId id;
  };
  struct Slot {
    Buffer weights, grads;
    stream::Content content = 0;  ///< of `weights`, after everything that was submitted
  };
  struct Unit {
    Buffer weight, grad;      ///< shards
    std::int64_t step = 0;    ///< how often the weights were advanced
    std::int64_t serial = 0;  ///< how often the gradient was reduced
  };
  struct Copy {
    std::string name;
    const Buffer& from;
    const Buffer& to;
    stream::Content content;
    double cost_us;
  };

  Buffer make_buffer(const std::string& name, std::int64_t numel);
  Slot& slot(UnitId id) { return slots_[static_cast<std::size_t>(id.value) % slots_.size()]; }
  const Slot& slot(UnitId id) const { return slots_[static_cast<std::size_t>(id.value) % slots_.size()]; }
  Unit& unit(UnitId id) { return units_.at(static_cast<std::size_t>(id.value)); }
  const Unit& unit(UnitId id) const { return units_.at(static_cast<std::size_t>(id.value)); }
  const std::string& name(UnitId id) const { return options_.units.at(static_cast<std::size_t>(id.value)); }
  void submit_copy(const Copy& copy, stream::StreamId stream);

  stream::Scheduler& scheduler_;
  comm::Lane gather_, reduce_;
  CopyingOptions options_;
  std::shared_ptr<stream::Timer> timer_;
  std::vector<Slot> slots_;
  std::vector<Unit> units_;
  Buffer landing_, bucket_;
};

}  // namespace orthant::fsdp::baselines
