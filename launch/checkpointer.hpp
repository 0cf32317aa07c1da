// SPDX-License-Identifier: Apache-2.0
// Saves the state of training while training goes on: a snapshot in memory, a thread that writes it, and a commit at a
// later step's end, once every rank's part is on disk. One checkpoint is under way at most. A save that fails on any
// rank fails on all: the last committed one stays, and training goes on.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <orthant/core/ckpt/checkpoint_folder.hpp>
#include <orthant/launch/checkpoint_state.hpp>

namespace orthant::launch {

struct CheckpointerOptions {
  CheckpointConfig config = {};
  ckpt::RunState state = {};      ///< all but step and samples
  std::int64_t resumed_step = 0;  ///< what lies above it in the folder is of another future
  std::function<void(const std::string&)> say = [](const std::string&) {};  ///< called on rank 0 only
  std::function<void()> progress = [] {};  ///< called as pieces are written, on the thread that writes
  std::function<void(std::int64_t step)> on_write = [](std::int64_t) {};  ///< a drill: called before a rank writes
};

struct SaveTimes {
  std::int64_t saves = 0;  ///< committed
  std::int64_t failures = 0;
  double stall_s = 0;  ///< in which training stood still
  double write_s = 0;  ///< of the last one, until this rank's part was on disk
};

class Checkpointer {
 public:
  Checkpointer(ParallelModel& model, ckpt::CheckpointFolder folder, CheckpointerOptions options);
  /// Waits for the writing thread.
  ~Checkpointer();

  /// By `checkpoint.interval`. done  steps done.
  bool is_due(std::int64_t done) const;
  /// The last step's state is to be saved, too. (Of a run that went on from a checkpoint as well: it is not to go on
  /// from there again.)
  bool saves_at_end() const {
    return options_.config.interval > 0 || options_.config.automatic || options_.resumed_step > 0;
  }

  /// Whether there is something to commit().
  bool is_under_way() const { return under_way_; }
  std::int64_t last_begun() const { return step_; }  ///< steps done at the last begin(); -1: none
  std::int64_t last_committed() const { return committed_; }

  // Votes of this rank; any thread.
  bool has_written() const { return written_; }
  bool wants_save();

  /// Begins a checkpoint of the model as it is after `done` steps; commits the one under way before. Collective over
  /// all ranks; only after drain(). Throws  CheckpointError, on all ranks, after checkpoint.max_failures in a row.
  /// trains_on  false: nothing happens meanwhile, so it is written without a snapshot, and committed.
  void begin(std::int64_t done, bool trains_on = true);
  /// Ends the one under way: waits for this rank's part, then for all. Collective over all ranks. Throws  as begin().
  void commit();

  const SaveTimes& times() const { return times_; }
  /// Between saves with interval = "auto"; 0 before the first.
  double interval_s() const { return interval_s_; }

 private:
  using Clock = std::chrono::steady_clock;

  void write();
  bool all_well(const std::string& mine, const char* what);
  void commit_on_first(const std::vector<std::string>& parts);
  void choose_interval(double stall_s);
  comm::Collectives& control() { return *model_.mesh().control().collectives; }
  bool is_first() { return model_.mesh().rank() == 0; }

  ParallelModel& model_;
  ckpt::CheckpointFolder folder_;
  CheckpointerOptions options_;

  void take_snapshot();
  std::vector<OwnedPiece> snapshot_;  ///< in memory of their own
  std::vector<OwnedPiece> pieces_;    ///< that are written
  std::thread writer_;
  std::string part_;  ///< of the index; after the writer has ended, as the next
  std::string error_;
  std::atomic<bool> written_{false};
  std::atomic<bool> under_way_{false};
  std::int64_t step_ = -1;
  std::int64_t committed_ = -1;
  std::int64_t failures_in_a_row_ = 0;
  bool sets_aside_ = true;  ///< until the first commit
  SaveTimes times_;
  double this_stall_s_ = 0;

  // interval = "auto"
  std::int64_t asked_ = 0;
  std::atomic<double> next_due_s_{0};  ///< since made_
  double interval_s_ = 0;
  Clock::time_point made_ = Clock::now();
};

}  // namespace orthant::launch
