// SPDX-License-Identifier: Apache-2.0
// TaskLog: passes tasks on to a scheduler and keeps what they claim, so that a plan can be checked as data. It can also
// spoil a plan, by leaving out one claim, or change its predicted durations.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <orthant/core/stream/scheduler.hpp>

namespace orthant::tests {

struct LoggedTask {
  std::string name;
  std::vector<stream::Claim> reads;
  std::vector<stream::Claim> writes;
};

struct TaskLogOptions {
  std::optional<int> dropped_claim = {};         ///< counted over all reads and writes, in submission order
  std::function<void(stream::Task&)> edit = {};  ///< sees every task before it is submitted
};

class TaskLog final : public stream::Scheduler {
 public:
  explicit TaskLog(stream::Scheduler& inner, TaskLogOptions options = {})
      : inner_(inner), options_(std::move(options)) {}

  stream::StreamId add_stream(std::string name, stream::StreamKind kind) override {
    return inner_.add_stream(std::move(name), kind);
  }
  stream::BufferId add_buffer(std::string name) override { return inner_.add_buffer(std::move(name)); }
  stream::TaskId submit(stream::Task task) override;
  void wait(stream::TaskId id) override { inner_.wait(id); }
  void drain() override { inner_.drain(); }

  /// Task ids are indices.
  const std::vector<LoggedTask>& tasks() const { return tasks_; }
  int claims() const { return claims_; }
  /// The task that lost its claim, and whether that was a read or a write.
  const std::string& dropped() const { return dropped_; }

 private:
  stream::Scheduler& inner_;
  TaskLogOptions options_;
  std::vector<LoggedTask> tasks_;
  int claims_ = 0;
  std::string dropped_;
};

/// Dependencies that follow from claims alone: no help from tasks that happen to follow each other on one stream.
class ClaimGraph {
 public:
  explicit ClaimGraph(const std::vector<LoggedTask>& tasks);
  /// How many buffers `later` claims to read as `earlier` left them.
  int reads_from(int later, int earlier) const;
  bool waits(int later, int earlier) const { return reached_[later][earlier]; }

 private:
  std::vector<std::vector<int>> sources_;  ///< of each task's reads
  std::vector<std::vector<bool>> reached_;
};

}  // namespace orthant::tests
