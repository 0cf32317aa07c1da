// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/cost/simulate.hpp>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/stream/virtual_clock.hpp>
#include <orthant/pipeline/schedule/message.hpp>

namespace orthant::pipeline {
namespace {

using stream::BufferId;
using stream::Claim;
using stream::StreamId;
using stream::StreamKind;
using stream::TaskId;

class Simulator {
 public:
  Simulator(const Schedule& lowered, const Costs& costs) : plan_(lowered), costs_(costs) {
    invariant(plan_.slots >= 1 || plan_.ranks.size() == 1, "simulate() takes a lowered schedule");
    for (std::size_t rank = 0; rank < plan_.ranks.size(); ++rank)
      ranks_.push_back({.compute = clock_.add_stream(fmt::format("rank {}", rank), StreamKind::compute)});
  }

  Simulation run(const MemoryModel& memory) {
    for (bool progress = true; progress;) {
      progress = false;
      for (Rank& rank : ranks_) {
        while (submit_next(rank)) progress = true;
      }
    }
    require_all_submitted();
    Simulation result;
    for (const auto& [send, task] : messages_) {
      const ChannelKey key = channel_of(plan_, send);
      result.messages.push_back({send, key.source, key.destination, interval(task)});
    }
    std::vector<std::vector<Interval>> ops;
    for (const Rank& rank : ranks_) {
      ops.emplace_back();
      for (const TaskId task : rank.tasks) ops.back().push_back(interval(task));
      result.exposed_per_rank.push_back(exposed(rank));
      result.exposed_communication += result.exposed_per_rank.back();
    }
    result.timing = timing_of(compute_only(plan_), std::move(ops), memory);
    return result;
  }

 private:
  struct Rank {
    StreamId compute;
    std::size_t next = 0;                         ///< in the rank's list
    std::vector<TaskId> tasks = {};               ///< of each compute operation; one for both of a pair
    std::vector<std::vector<TaskId>> waits = {};  ///< of each compute operation: the messages it takes
  };
  /// A place for one message; taken in turn.
  struct Slot {
    BufferId buffer;
    bool is_full = false;  ///< as far as the receiver's list is submitted
  };
  struct Receive {
    Op op;
    Slot* slot;
  };
  /// What is posted at one end and not yet at the other waits here.
  struct Channel {
    StreamId stream;
    std::vector<Slot> slots = {};
    std::size_t received = 0;
    std::deque<Op> sends = {};
    std::deque<Receive> receives = {};
  };
  struct Arrival {
    Slot* slot;
    TaskId message;
  };

  const std::vector<Op>& list_of(const Rank& rank) const {
    return plan_.ranks[static_cast<std::size_t>(&rank - ranks_.data())];
  }

  /// Submits what stands next in the rank's list; false at its end, or while the message that it needs is not
  /// submitted.
  bool submit_next(Rank& rank) {
    const auto& list = list_of(rank);
    if (rank.next == list.size()) return false;
    const Op& op = list[rank.next];
    if (is_compute(op.kind)) {
      invariant(!op.joins_next || rank.next + 1 < list.size(), "simulate: a pair without its second operation");
      return compute(rank, std::span(list).subspan(rank.next, op.joins_next ? 2 : 1));
    }
    if (is_send(op.kind)) {
      Channel& channel = channel_at(op);
      channel.sends.push_back(op);
      pair_up(channel);
    } else if (is_receive(op.kind)) {
      Channel& channel = channel_at(op);
      Slot& slot = channel.slots[channel.received++ % channel.slots.size()];
      if (std::exchange(slot.is_full, true))
        throw InternalError(fmt::format("simulate: {} finds no free slot ({} in all)", to_text(op), plan_.slots));
      channel.receives.push_back({op, &slot});
      pair_up(channel);
    }
    ++rank.next;
    return true;
  }

  Channel& channel_at(const Op& message) {
    const ChannelKey key = channel_of(plan_, message);
    const auto known = channels_.find(key);
    if (known != channels_.end()) return known->second;
    const std::string name =
        fmt::format("{} to {} {}", key.source, key.destination, key.gradient ? "gradients" : "activations");
    Channel channel{.stream = clock_.add_stream(name, StreamKind::request)};
    for (int i = 0; i < plan_.slots; ++i)
      channel.slots.push_back({clock_.add_buffer(fmt::format("slot {} of {}", i, name))});
    return channels_.emplace(key, std::move(channel)).first->second;
  }

  /// Messages of which both ends are posted, as one task each.
  void pair_up(Channel& channel) {
    for (; !channel.sends.empty() && !channel.receives.empty();
         channel.sends.pop_front(), channel.receives.pop_front()) {
      const Op& send = channel.sends.front();
      const auto& [receive, slot] = channel.receives.front();
      if (matching_receive(send) != receive)
        throw InternalError(fmt::format("simulate: {} meets {}", to_text(send), to_text(receive)));
      const TaskId task = clock_.submit({.name = to_text(send),
                                         .stream = channel.stream,
                                         .reads = {output(send.kind == OpKind::send_gradient, send)},
                                         .writes = {content(*slot, receive)},
                                         .cost_us = costs_.message});
      arrived_[receive] = {slot, task};
      messages_.emplace_back(send, task);
    }
  }

  /// An operation, or a pair, and before it a task that takes each message out of its slot, in no time: so the slot is
  /// free as soon as the reader begins.
  bool compute(Rank& rank, std::span<const Op> ops) {
    std::vector<Op> receives;
    for (const Op& op : ops) {
      if (const auto receive = receive_before(plan_, op)) receives.push_back(*receive);
    }
    if (!std::ranges::all_of(receives, [&](const Op& receive) { return arrived_.contains(receive); })) return false;
    std::vector<TaskId> waits;
    for (const Op& receive : receives) {
      const auto [slot, message] = arrived_.at(receive);
      clock_.submit({.name = "TAKE " + to_text(receive), .stream = rank.compute, .reads = {content(*slot, receive)}});
      slot->is_full = false;
      waits.push_back(message);
    }
    stream::Task task{.name = to_text(ops.front()), .stream = rank.compute, .cost_us = duration(ops)};
    for (const Op& op : ops) {
      const auto source = source_stage(plan_, op);
      if (source && plan_.rank_of(*source) == plan_.rank_of(op.stage))  // handed over at the turn of a V
        task.reads.push_back(output(makes_input_gradient(op.kind), {op.kind, *source, op.microbatch}));
      if (target_stage(plan_, op)) task.writes.push_back(output(makes_input_gradient(op.kind), op));
    }
    const TaskId id = clock_.submit(std::move(task));
    for (std::size_t i = 0; i < ops.size(); ++i) {
      rank.tasks.push_back(id);
      rank.waits.push_back(waits);
    }
    rank.next += ops.size();
    return true;
  }

  double duration(std::span<const Op> ops) const {
    if (ops.size() == 2 && costs_.overlapped > 0) return costs_.overlapped;
    double sum = 0;
    for (const Op& op : ops) sum += cost_of(op.kind, costs_.of(plan_, op.stage));
    return sum;
  }

  /// What the stage makes of the micro-batch.
  Claim output(bool gradient, const Op& op) {
    const auto [place, is_new] = outputs_.try_emplace({gradient, op.stage, op.microbatch});
    if (is_new)
      place->second = clock_.add_buffer(fmt::format("{} of {}", gradient ? "gradient" : "activation", to_text(op)));
    return {place->second, stream::content_of("output")};
  }

  static Claim content(const Slot& slot, const Op& receive) {
    return {slot.buffer, stream::content_of(receive.kind == OpKind::receive_gradient ? "gradient" : "activation",
                                            receive.stage.value, receive.microbatch.value)};
  }

  Interval interval(TaskId task) const {
    const auto& record = clock_.records()[static_cast<std::size_t>(task.value)];
    return {record.begin_us, record.end_us};
  }

  /// Idle time before an operation that falls into its messages, counted once where two overlap.
  double exposed(const Rank& rank) const {
    double sum = 0, free_at = 0;
    for (std::size_t i = 0; i < rank.tasks.size(); ++i) {
      const Interval at = interval(rank.tasks[i]);
      std::vector<Interval> waits;
      for (const TaskId message : rank.waits[i]) waits.push_back(interval(message));
      std::ranges::sort(waits, {}, &Interval::begin);
      for (const Interval& message : waits) {
        const double from = std::max(free_at, message.begin), to = std::min(at.begin, message.end);
        if (from >= to) continue;
        sum += to - from;
        free_at = to;
      }
      free_at = at.end;
    }
    return sum;
  }

  void require_all_submitted() const {
    std::string stuck;
    for (const Rank& rank : ranks_) {
      if (rank.next < list_of(rank).size())
        stuck += fmt::format("; rank {} at {}", &rank - ranks_.data(), to_text(list_of(rank)[rank.next]));
    }
    if (!stuck.empty())
      throw InternalError(fmt::format("simulate {}: the ranks wait for each other for ever{}", plan_.name, stuck));
  }

  const Schedule& plan_;
  const Costs& costs_;
  stream::VirtualClock clock_;
  std::vector<Rank> ranks_;
  std::map<ChannelKey, Channel> channels_;
  std::map<std::tuple<bool, StageId, MicrobatchId>, BufferId> outputs_;
  std::map<Op, Arrival> arrived_;  ///< by RECV
  std::vector<std::pair<Op, TaskId>> messages_;
};

}  // namespace

Simulation simulate(const Schedule& lowered, const Costs& costs, const MemoryModel& memory) {
  return Simulator(lowered, costs).run(memory);
}

}  // namespace orthant::pipeline
