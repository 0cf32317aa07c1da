// SPDX-License-Identifier: Apache-2.0
// One rank's run after the config was read: plan, make, go on from a checkpoint, train, save, report.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <orthant/core/ckpt/folder_lock.hpp>
#include <orthant/core/comm/watched_fabric.hpp>
#include <orthant/core/stream/cpu_scheduler.hpp>
#include <orthant/launch/memory_plan.hpp>
#include <orthant/launch/resume.hpp>
#include <orthant/launch/run_data.hpp>
#include <orthant/launch/train_command.hpp>
#include <orthant/launch/trainer.hpp>
#include <orthant/launch/watchdog/watchdog.hpp>

namespace orthant::launch {

/// The longest that may pass without anything finishing, by RunPhase.
std::array<std::chrono::milliseconds, kRunPhases> phase_timeouts(const RunConfig& run);

class RankRun {
 public:
  /// All outlive this.
  RankRun(const RunConfig& run, comm::WatchedFabric& fabric, Watchdog& watchdog);

  /// Returns  the exit code. Collective over all ranks.
  int execute(const TrainArguments& arguments);
  /// A watchdog has found that the run hangs. Any thread.
  void note_hang();

  /// Counted from 1; 0 before the first.
  std::int64_t step() const { return model_ ? resumed_step_ + model_->submitted_steps() : 0; }
  std::string where() const { return mesh_ ? mesh_->text() : "before the mesh"; }

 private:
  struct Planned;
  void make_folders();
  Planned plan();
  Resumed load(const TrainArguments& arguments);
  void announce(const TrainArguments& arguments, const Planned& planned);
  void make_checkpointer(const Resumed& resumed);
  TrainSummary train_from(std::int64_t first_step, const TrainArguments& arguments);
  void report(const Planned& planned, const TrainSummary& summary);
  void enter(RunPhase phase, std::int64_t step);
  void say(const std::string& text);
  bool is_first() const { return context_.fabric.rank() == 0; }
  comm::Collectives& control() { return *mesh_->control().collectives; }

  // Declared so that the scheduler, with its threads, goes before what its tasks refer to.
  const RunConfig& run_;
  comm::WatchedFabric& fabric_;
  Watchdog& watchdog_;
  RunData data_;
  trace::Tracer tracer_;
  std::string run_id_;
  std::int64_t resumed_step_ = 0;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  std::optional<ckpt::CheckpointFolder> checkpoints_;
  std::optional<ckpt::FolderLock> lock_;  ///< on rank 0, as the next three
  std::optional<RunFolder> folder_;
  std::optional<Ledger> ledger_;
  std::optional<Progress> progress_;
  std::optional<mesh::DeviceMesh> mesh_;
  std::unique_ptr<ParallelModel> model_;
  std::unique_ptr<Checkpointer> checkpointer_;
  stream::CpuScheduler scheduler_;
  RankContext context_;
};

}  // namespace orthant::launch
