// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/plan/hang.hpp>

#include <map>

#include <fmt/format.h>

#include <orthant/pipeline/plan/op_index.hpp>
#include <orthant/pipeline/schedule/message.hpp>

namespace orthant::pipeline {
namespace {

std::string name_of(const ChannelKey& channel) {
  return fmt::format("{} {}>{}", channel.gradient ? 'g' : 'a', channel.source, channel.destination);
}

/// The tasks of one rank. Tasks first, as the list has them, then the waits: a slot may be freed further down.
class RankPlan {
 public:
  RankPlan(const Schedule& schedule, const OpIndex& index, std::size_t rank)
      : schedule_(schedule), index_(index), ops_(schedule.ranks[rank]), task_of_(ops_.size(), -1), take_of_(task_of_) {}

  std::vector<PlannedTask> make() {
    for (std::size_t i = 0; i < ops_.size(); ++i) add(i);
    for (std::size_t i = 0; i < ops_.size(); ++i) add_waits(i);
    return std::move(tasks_);
  }

 private:
  int add(std::string name, std::string stream, std::string together = {}) {
    tasks_.push_back({.name = std::move(name), .stream = std::move(stream), .together = std::move(together)});
    return static_cast<int>(tasks_.size()) - 1;
  }

  void add(std::size_t i) {
    const Op& op = ops_[i];
    if (is_send(op.kind) || is_receive(op.kind)) {
      const std::string channel = name_of(channel_of(schedule_, op));
      task_of_[i] = add(to_text(is_send(op.kind) ? op : matching_send(op)),
                        (is_send(op.kind) ? "SEND " : "RECV ") + channel, channel);
    } else if (i > 0 && ops_[i - 1].joins_next) {
      take_of_[i] = take_of_[i - 1];
      task_of_[i] = task_of_[i - 1];
      tasks_[task_of_[i]].name += " & " + to_text(op);
    } else {
      const bool receives = receive_before(schedule_, op) ||
                            (op.joins_next && i + 1 < ops_.size() && receive_before(schedule_, ops_[i + 1]));
      if (receives) take_of_[i] = add("TAKE " + to_text(op), "compute");
      task_of_[i] = add(to_text(op), "compute");
    }
  }

  void add_waits(std::size_t i) {
    const Op& op = ops_[i];
    if (is_send(op.kind)) {
      wait(task_of_[i], task_of_, index_.producer_of(op));
    } else if (is_receive(op.kind)) {
      auto& received = received_[channel_of(schedule_, op)];
      received.push_back(op);
      const int oldest = static_cast<int>(received.size()) - 1 - schedule_.slots;
      if (oldest >= 0) wait(task_of_[i], take_of_, index_.reader_of(received[oldest]));
    } else if (const auto receive = receive_before(schedule_, op)) {
      wait(take_of_[i], task_of_, *receive);
    }
  }

  void wait(int task, const std::vector<int>& tasks, const Op& other) {
    const int position = index_.position(other);
    if (position >= 0 && task >= 0) tasks_[task].waits_for.push_back(tasks[position]);
  }

  const Schedule& schedule_;
  const OpIndex& index_;
  const std::vector<Op>& ops_;
  std::vector<int> task_of_, take_of_;  ///< per operation
  std::map<ChannelKey, std::vector<Op>> received_;
  std::vector<PlannedTask> tasks_;
};

/// A walk over all lists at once.
class InLine {
 public:
  explicit InLine(const Schedule& schedule) : schedule_(schedule), index_(schedule), at_(schedule.ranks.size()) {}

  std::string run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t rank = 0; rank < at_.size(); ++rank) {
        while (advance(rank)) progress = true;
      }
    }
    std::string stuck;
    for (std::size_t rank = 0; rank < at_.size(); ++rank) {
      if (const Op* op = head(rank))
        stuck +=
            fmt::format("{}rank {} at {} (operation {})", stuck.empty() ? "" : "; ", rank, to_text(*op), at_[rank]);
    }
    return stuck;
  }

 private:
  const Op* head(std::size_t rank) const {
    const auto& ops = schedule_.ranks[rank];
    return at_[rank] < ops.size() ? &ops[at_[rank]] : nullptr;
  }

  bool advance(std::size_t rank) {
    const Op* op = head(rank);
    if (op == nullptr || is_receive(op->kind)) return false;
    if (is_send(op->kind) && !meet(matching_receive(*op))) return false;
    ++at_[rank];
    return true;
  }

  bool meet(const Op& receive) {
    const auto peer = static_cast<std::size_t>(schedule_.rank_of(receive.stage));
    const Op* op = head(peer);
    if (op == nullptr || *op != receive) return false;
    auto& received = received_[channel_of(schedule_, receive)];
    const int oldest = static_cast<int>(received.size()) - schedule_.slots;
    if (oldest >= 0 && index_.position(index_.reader_of(received[oldest])) > static_cast<int>(at_[peer])) return false;
    received.push_back(receive);
    ++at_[peer];
    return true;
  }

  const Schedule& schedule_;
  const OpIndex index_;
  std::vector<std::size_t> at_;  ///< per rank
  std::map<ChannelKey, std::vector<Op>> received_;
};

}  // namespace

std::vector<std::vector<PlannedTask>> plan_on_streams(const Schedule& lowered) {
  const OpIndex index(lowered);
  std::vector<std::vector<PlannedTask>> tasks;
  for (std::size_t rank = 0; rank < lowered.ranks.size(); ++rank)
    tasks.push_back(RankPlan(lowered, index, rank).make());
  return tasks;
}

std::string hang_in_line(const Schedule& lowered) { return InLine(lowered).run(); }

}  // namespace orthant::pipeline
