// SPDX-License-Identifier: Apache-2.0
#include <orthant/tests/harness/plan/task_log.hpp>

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace orthant::tests {

stream::TaskId TaskLog::submit(stream::Task task) {
  if (options_.edit) options_.edit(task);
  for (auto* claims : {&task.reads, &task.writes}) {
    const int first = claims_;
    claims_ += static_cast<int>(claims->size());
    if (options_.dropped_claim && *options_.dropped_claim >= first && *options_.dropped_claim < claims_) {
      dropped_ = std::string(claims == &task.reads ? "a read of '" : "a write of '") + task.name + "'";
      claims->erase(claims->begin() + (*options_.dropped_claim - first));
    }
  }
  tasks_.push_back({task.name, task.reads, task.writes});
  return inner_.submit(std::move(task));
}

int ClaimGraph::reads_from(int later, int earlier) const {
  return static_cast<int>(std::ranges::count(sources_[later], earlier));
}

ClaimGraph::ClaimGraph(const std::vector<LoggedTask>& tasks) {
  struct Buffer {
    int writer = -1;
    std::vector<int> readers;
  };
  std::unordered_map<stream::BufferId, Buffer> buffers;
  for (int id = 0; id < static_cast<int>(tasks.size()); ++id) {
    std::vector<bool> direct(tasks.size(), false);
    const auto wait_for = [&](int earlier) {
      if (earlier >= 0 && earlier != id) direct[earlier] = true;
    };
    sources_.emplace_back();
    for (const auto& read : tasks[id].reads) {
      sources_.back().push_back(buffers[read.buffer].writer);
      wait_for(buffers[read.buffer].writer);
      buffers[read.buffer].readers.push_back(id);
    }
    for (const auto& write : tasks[id].writes) {
      Buffer& buffer = buffers[write.buffer];
      wait_for(buffer.writer);
      for (int reader : buffer.readers) wait_for(reader);
      buffer = {.writer = id, .readers = {}};
    }
    std::vector<bool> reached = direct;
    for (int earlier = 0; earlier < id; ++earlier) {
      if (!direct[earlier]) continue;
      for (int before = 0; before < earlier; ++before) {
        if (reached_[earlier][before]) reached[before] = true;
      }
    }
    reached_.push_back(std::move(reached));
  }
}

}  // namespace orthant::tests
