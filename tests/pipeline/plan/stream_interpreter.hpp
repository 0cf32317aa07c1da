// SPDX-License-Identifier: Apache-2.0
// Plays a lowered schedule as streams would: each rank a queue of computations, and a queue for each end of a channel.
// What is at the head of a queue begins when it can, whatever stands before it in the rank's list.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <orthant/pipeline/schedule/message.hpp>

namespace orthant::pipeline::tests {

class StreamInterpreter {
 public:
  /// random  picks who goes first where several could.
  StreamInterpreter(const Schedule& schedule, std::mt19937& random) : schedule_(schedule) {
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      for (const Op& op : schedule.ranks[rank]) {
        if (is_compute(op.kind)) queues_[{static_cast<int>(rank), {}, Role::compute}].push_back(op);
        if (is_send(op.kind)) queues_[{0, channel_of(schedule, op), Role::send}].push_back(op);
        if (is_receive(op.kind)) queues_[{0, channel_of(schedule, op), Role::receive}].push_back(op);
      }
    }
    std::vector<Key> keys;
    for (const auto& [key, queue] : queues_) keys.push_back(key);
    for (bool progress = true; progress;) {
      progress = false;
      std::ranges::shuffle(keys, random);
      for (const Key& key : keys) progress |= step(key);
    }
  }

  /// Whether all queues became empty.
  bool ends() const {
    return std::ranges::all_of(queues_, [](const auto& queue) { return queue.second.empty(); });
  }

 private:
  enum class Role { compute, send, receive };
  using Key = std::tuple<int, ChannelKey, Role>;
  struct Slots {
    std::vector<Op> holds;  ///< per slot the RECV whose message it holds; SEND: none
    std::size_t received = 0;
  };

  bool step(const Key& key) {
    auto& queue = queues_[key];
    if (queue.empty()) return false;
    if (std::get<Role>(key) == Role::compute) return compute(queue);
    return std::get<Role>(key) == Role::send && transfer(std::get<ChannelKey>(key), queue);
  }

  bool compute(std::deque<Op>& queue) {
    const std::size_t count = queue.front().joins_next ? 2 : 1;
    for (std::size_t i = 0; i < count; ++i) {
      if (source_stage(schedule_, queue[i]) && !arrived_.contains(input_of(queue[i]))) return false;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const Op op = queue.front();
      queue.pop_front();
      done_.insert(op);
      if (const auto receive = receive_before(schedule_, op)) free_slot(*receive);
      const auto target = target_stage(schedule_, op);
      if (target && !send_after(schedule_, op)) arrived_.insert({op.kind != OpKind::forward, {*target, op.microbatch}});
    }
    return true;
  }

  bool transfer(const ChannelKey& channel, std::deque<Op>& sends) {
    auto& receives = queues_[{0, channel, Role::receive}];
    const Op send = sends.front();
    if (receives.empty() || receives.front() != matching_receive(send) || !is_made(send)) return false;
    Slots& slots = slots_[channel];
    slots.holds.resize(static_cast<std::size_t>(schedule_.slots), Op{OpKind::send_activation, {}, {}});
    Op& slot = slots.holds[slots.received % slots.holds.size()];
    if (is_receive(slot.kind)) return false;
    slot = receives.front();
    ++slots.received;
    arrived_.insert({channel.gradient, {slot.stage, slot.microbatch}});
    sends.pop_front();
    receives.pop_front();
    return true;
  }

  bool is_made(const Op& send) const {
    const auto done = [&](OpKind kind) { return done_.contains({kind, send.stage, send.microbatch}); };
    if (send.kind == OpKind::send_activation) return done(OpKind::forward);
    return done(OpKind::backward) || done(OpKind::backward_input);
  }

  void free_slot(const Op& receive) {
    for (Op& slot : slots_[channel_of(schedule_, receive)].holds) {
      if (slot == receive) slot = Op{OpKind::send_activation, {}, {}};
    }
  }

  using Input = std::pair<bool, std::pair<StageId, MicrobatchId>>;  ///< gradient?
  static Input input_of(const Op& op) { return {op.kind != OpKind::forward, {op.stage, op.microbatch}}; }

  const Schedule& schedule_;
  std::map<Key, std::deque<Op>> queues_;
  std::map<ChannelKey, Slots> slots_;
  std::set<Op> done_;
  std::set<Input> arrived_;
};

}  // namespace orthant::pipeline::tests
