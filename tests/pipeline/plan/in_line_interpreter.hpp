// SPDX-License-Identifier: Apache-2.0
// Plays a lowered schedule with values: each rank runs its list in line, a SEND ends only together with a RECV.
// Channels know no micro-batch: what a SEND gives, the next RECV of its channel gets, in the next slot of the channel's
// ring.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <orthant/pipeline/cost/costs.hpp>
#include <orthant/pipeline/schedule/message.hpp>

namespace orthant::pipeline::tests {

class InLineInterpreter {
 public:
  explicit InLineInterpreter(const Schedule& schedule) : schedule_(schedule), ranks_(schedule.ranks.size()) {
    for (bool progress = true; progress && !failed_;) {
      progress = false;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        while (!failed_ && step(rank)) progress = true;
      }
    }
  }

  /// Whether every rank came to the end of its list.
  bool ends() const {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].at != schedule_.ranks[rank].size()) return false;
    }
    return true;
  }

  /// Whether it ended, and everything was computed from the right data, once.
  bool computes_the_step(bool trains) const {
    if (!ends() || failed_ || !inbox_.empty() || !outbox_.empty() || (trains && !saved_.empty()) || !pending_.empty())
      return false;
    const auto same_tail = [&](const Rank& rank) { return rank.tail == (trains ? "NORM_UNITS TIE NORM STEP " : ""); };
    if (!std::ranges::all_of(ranks_, same_tail)) return false;
    for (StageId stage{0}; stage.value < schedule_.stages; ++stage.value) {
      const auto [first, end] = schedule_.microbatches_of(stage);
      std::vector<int> all;
      for (int m = first; m < end; ++m) all.push_back(m);
      for (const Sum sum : {Sum::loss, Sum::norms, Sum::weights}) {
        const auto found = sums_.find({stage, sum});
        std::vector<int> added = found == sums_.end() ? std::vector<int>{} : found->second;
        std::ranges::sort(added);
        if (added != (trains || sum == Sum::loss ? all : std::vector<int>{})) return false;
      }
    }
    return true;
  }

  bool adds_in_order() const {
    return std::ranges::all_of(sums_, [](const auto& sum) { return std::ranges::is_sorted(sum.second); });
  }

  /// At unit costs, messages taking no time.
  double makespan() const { return std::ranges::max(ranks_, {}, &Rank::now).now; }

 private:
  enum class Sum { loss, norms, weights };
  struct Rank {
    std::size_t at = 0;
    double now = 0;
    std::string tail;
  };
  struct Ring {
    std::vector<bool> taken;
    std::size_t received = 0;
  };
  struct Cargo {
    std::string value;
    ChannelKey channel = {};
    int slot = -1;  ///< of the channel's ring; -1: handed over on the rank
  };

  void check(bool condition) { failed_ |= !condition; }

  template <class Value>
  Value take(std::map<Op, Value>& box, const Op& key) {
    const auto node = box.extract(key);
    check(!node.empty());
    return node.empty() ? Value{} : node.mapped();
  }
  template <class Value>
  void put(std::map<Op, Value>& box, const Op& key, Value value) {
    check(box.emplace(key, std::move(value)).second);
  }

  bool is_here(const Op& op, std::size_t rank) const {
    return op.stage.value >= 0 && op.stage.value < schedule_.stages && op.microbatch.value >= 0 &&
           schedule_.rank_of(op.stage) == static_cast<int>(rank);
  }

  bool step(std::size_t rank) {
    const auto& ops = schedule_.ranks[rank];
    Rank& state = ranks_[rank];
    if (state.at == ops.size()) return false;
    const Op& op = ops[state.at];
    if (is_tail(op.kind)) {
      state.tail += std::string(letters(op.kind)) + " ";
      ++state.at;
      return true;
    }
    check(is_here(op, rank) && is_compute(op.kind) + is_send(op.kind) + is_receive(op.kind) == 1 && state.tail.empty());
    if (failed_ || is_receive(op.kind)) return false;
    if (is_send(op.kind)) return meet(op, rank);
    if (op.joins_next) {
      check(op.kind == OpKind::forward && state.at + 1 < ops.size());
      if (failed_) return false;
      const Op& joined = ops[state.at + 1];
      check(joined.kind == OpKind::backward && is_here(joined, rank) && saved_.contains(key(OpKind::forward, joined)));
      if (!failed_ && !schedule_.is_last(joined.stage)) check(inbox_.contains(key(OpKind::receive_gradient, joined)));
    }
    if (!failed_) compute(op);
    state.now += cost_of(op.kind, StageCosts{});
    ++state.at;
    return true;
  }

  static Op key(OpKind kind, const Op& op) { return {kind, op.stage, op.microbatch}; }

  /// A send to where there is nobody, or to the rank itself, never ends.
  bool meet(const Op& send, std::size_t rank) {
    const Op wanted = matching_receive(send);
    const bool forward = send.kind == OpKind::send_activation;
    if (forward ? schedule_.is_last(send.stage) : schedule_.is_first(send.stage)) return false;
    const auto peer = static_cast<std::size_t>(schedule_.rank_of(wanted.stage));
    if (peer == rank || ranks_[peer].at == schedule_.ranks[peer].size()) return false;
    const Op& receive = schedule_.ranks[peer][ranks_[peer].at];
    const ChannelKey channel = channel_of(schedule_, send);
    if (receive.kind != wanted.kind || !is_here(receive, peer) || !ranks_[peer].tail.empty()) return false;
    if (forward ? schedule_.is_first(receive.stage) : schedule_.is_last(receive.stage)) return false;
    if (channel_of(schedule_, receive) != channel) return false;
    Ring& ring = rings_[channel];
    ring.taken.resize(static_cast<std::size_t>(schedule_.slots));
    const std::size_t slot = ring.received % ring.taken.size();
    if (ring.taken[slot]) return false;
    ring.taken[slot] = true;
    ++ring.received;
    put(inbox_, receive, Cargo{take(outbox_, send), channel, static_cast<int>(slot)});
    ranks_[rank].now = ranks_[peer].now = std::max(ranks_[rank].now, ranks_[peer].now);
    ++ranks_[rank].at;
    ++ranks_[peer].at;
    return true;
  }

  std::string take_input(const Op& receive) {
    const Cargo cargo = take(inbox_, receive);
    if (cargo.slot >= 0) rings_[cargo.channel].taken[static_cast<std::size_t>(cargo.slot)] = false;
    return cargo.value;
  }

  void give(const Op& send, const std::string& value) {
    const Op receive = matching_receive(send);
    if (schedule_.rank_of(receive.stage) == schedule_.rank_of(send.stage)) {
      put(inbox_, receive, Cargo{.value = value});
    } else {
      put(outbox_, send, value);
    }
  }

  void compute(const Op& op) {
    const Op place = key(OpKind::forward, op);
    const auto add = [&](Sum sum) { sums_[{op.stage, sum}].push_back(op.microbatch.value); };
    if (op.kind == OpKind::forward) {
      const std::string x = fmt::format("x{}", op.microbatch.value);
      check(schedule_.is_first(op.stage) || take_input(key(OpKind::receive_activation, op)) == x);
      put(saved_, place, x);
      add(Sum::loss);
      if (!schedule_.is_last(op.stage)) give(key(OpKind::send_activation, op), x);
      return;
    }
    if (makes_input_gradient(op.kind)) {
      const std::string x = take(saved_, place);
      check(schedule_.is_last(op.stage) || take_input(key(OpKind::receive_gradient, op)) == x);
      if (!schedule_.is_first(op.stage)) give(key(OpKind::send_gradient, op), x);
      add(Sum::norms);
      put(pending_, place, x);
    }
    if (makes_weight_gradient(op.kind)) {
      take(pending_, place);
      add(Sum::weights);
    }
  }

  const Schedule& schedule_;
  std::vector<Rank> ranks_;
  std::map<ChannelKey, Ring> rings_;
  std::map<Op, Cargo> inbox_;
  std::map<Op, std::string> outbox_, saved_, pending_;
  std::map<std::pair<StageId, Sum>, std::vector<int>> sums_;
  bool failed_ = false;
};

}  // namespace orthant::pipeline::tests
