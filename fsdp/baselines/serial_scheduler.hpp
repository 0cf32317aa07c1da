// SPDX-License-Identifier: Apache-2.0
// SerialScheduler: a decorator under which nothing overlaps. Every task waits for the one that was submitted before it,
// as in a trainer that waits for each collective. It says so by claims, so it holds on every back end.
#pragma once

#include <string>
#include <utility>

#include <orthant/core/stream/scheduler.hpp>

namespace orthant::fsdp::baselines {

class SerialScheduler final : public stream::Scheduler {
 public:
  /// below  outlives this.
  explicit SerialScheduler(stream::Scheduler& below) : below_(below), turn_(below.add_buffer("turn")) {}

  stream::StreamId add_stream(std::string name, stream::StreamKind kind) override {
    return below_.add_stream(std::move(name), kind);
  }
  stream::BufferId add_buffer(std::string name) override { return below_.add_buffer(std::move(name)); }
  stream::TaskId submit(stream::Task task) override {
    if (turns_ > 0) task.reads.push_back({turn_, stream::content_of("turn", turns_)});
    task.writes.push_back({turn_, stream::content_of("turn", ++turns_)});
    return below_.submit(std::move(task));
  }
  void wait(stream::TaskId id) override { below_.wait(id); }
  void drain() override { below_.drain(); }

 private:
  stream::Scheduler& below_;
  stream::BufferId turn_;
  std::int64_t turns_ = 0;
};

}  // namespace orthant::fsdp::baselines
