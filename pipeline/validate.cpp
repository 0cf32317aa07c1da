// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/validate.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <orthant/pipeline/message.hpp>

namespace orthant::pipeline {
namespace {

constexpr OpKind kTail[] = {OpKind::norm_units, OpKind::tie, OpKind::norm, OpKind::step};

class Validator {
 public:
  explicit Validator(const Schedule& schedule) : schedule_(schedule), places_(schedule.ranks.size()) {
    proof_.peak_activations.resize(schedule.stages);
    for (std::size_t rank = 0; rank < places_.size(); ++rank) {
      const auto& ops = schedule.ranks[rank];
      for (std::size_t i = 0; i < ops.size(); ++i) places_[rank][ops[i]].push_back(i);
      trains_ |= std::ranges::any_of(ops, [](const Op& op) {
        return op.kind != OpKind::forward && op.kind != OpKind::send_activation &&
               op.kind != OpKind::receive_activation;
      });
    }
  }

  Proof run() {
    for (std::size_t rank = 0; rank < places_.size(); ++rank) {
      const std::vector<Op> expected = expected_ops(rank);
      check_complete(rank, expected);
      check_order(rank);
      check_slots(rank);
    }
    check_rendezvous();
    for (const auto& ops : schedule_.ranks) count_activations(ops);
    return std::move(proof_);
  }

 private:
  bool has(int rank, const Op& op) const { return places_[rank].contains(op); }

  template <class... Args>
  void report(int rank, fmt::format_string<Args...> format, Args&&... args) {
    proof_.problems.push_back(fmt::format("rank {}: {}", rank, fmt::format(format, std::forward<Args>(args)...)));
  }

  /// What must stand on the rank. Whether B is split is each stage's and micro-batch's own choice.
  std::vector<Op> expected_ops(int rank) const {
    std::vector<Op> expected;
    const auto add = [&](const Op& op) {
      if (const auto receive = receive_before(schedule_, op)) expected.push_back(*receive);
      expected.push_back(op);
      if (const auto send = send_after(schedule_, op)) expected.push_back(*send);
    };
    for (StageId stage{0}; stage.value < schedule_.stages; ++stage.value) {
      if (schedule_.rank_of(stage) != rank) continue;
      for (MicrobatchId m{0}; m.value < schedule_.microbatches; ++m.value) {
        add({OpKind::forward, stage, m});
        if (!trains_) continue;
        const Op input{OpKind::backward_input, stage, m}, weight{OpKind::backward_weight, stage, m};
        if (has(rank, input) || has(rank, weight)) {
          add(input);
          add(weight);
        } else {
          add({OpKind::backward, stage, m});
        }
      }
    }
    if (trains_) {
      for (const OpKind kind : kTail) expected.push_back({kind, {}, {}});
    }
    return expected;
  }

  void check_complete(int rank, const std::vector<Op>& expected) {
    for (const Op& op : expected) {
      if (!has(rank, op)) report(rank, "{} is missing", to_text(op));
    }
    const std::set<Op> known(expected.begin(), expected.end());
    for (const auto& [op, places] : places_[rank]) {
      if (!known.contains(op)) report(rank, "{} does not belong there", to_text(op));
      if (places.size() > 1) report(rank, "{} stands {} times", to_text(op), places.size());
    }
  }

  /// Missing operations are reported elsewhere.
  void require_before(int rank, const Op& first, const Op& second) {
    const auto a = places_[rank].find(first), b = places_[rank].find(second);
    if (a == places_[rank].end() || b == places_[rank].end()) return;
    if (a->second.front() > b->second.front()) report(rank, "{} stands before {}", to_text(second), to_text(first));
  }

  void check_order(int rank) {
    const auto& ops = schedule_.ranks[rank];
    enum class Sum { loss, norm_gradients, weight_gradients };
    std::map<std::pair<StageId, Sum>, MicrobatchId> last_added;
    const auto in_order = [&](const Op& op, Sum sum) {
      auto& last = last_added[{op.stage, sum}];
      if (op.microbatch < last)
        report(rank, "{} stands after that of m{}: sums have an order", to_text(op), last.value);
      last = op.microbatch;
    };
    for (const Op& op : ops) {
      const auto [kind, stage, m] = op;
      if (const auto receive = receive_before(schedule_, op)) require_before(rank, *receive, op);
      if (const auto send = send_after(schedule_, op)) require_before(rank, op, *send);
      if (makes_input_gradient(kind)) require_before(rank, {OpKind::forward, stage, m}, op);
      if (kind == OpKind::backward_weight) require_before(rank, {OpKind::backward_input, stage, m}, op);
      if (kind == OpKind::forward) in_order(op, Sum::loss);
      if (makes_input_gradient(kind)) in_order(op, Sum::norm_gradients);
      if (makes_weight_gradient(kind)) in_order(op, Sum::weight_gradients);
    }
    const auto tail = std::ranges::find_if(ops, [](const Op& op) { return is_tail(op.kind); });
    for (auto it = tail; it != ops.end(); ++it) {
      if (!is_tail(it->kind)) report(rank, "{} stands after {}", to_text(*it), to_text(*tail));
      if (it != tail && is_tail(it->kind) && it->kind < std::prev(it)->kind) {
        report(rank, "{} stands before {}", to_text(*std::prev(it)), to_text(*it));
      }
    }
  }

  void check_slots(int rank) {
    std::map<std::pair<OpKind, StageId>, int> unread;
    for (const Op& op : schedule_.ranks[rank]) {
      if (const auto receive = receive_before(schedule_, op)) --unread[{receive->kind, receive->stage}];
      if (is_receive(op.kind) && ++unread[{op.kind, op.stage}] > schedule_.slots) {
        report(rank, "{} finds no free slot ({} in all)", to_text(op), schedule_.slots);
      }
    }
  }

  /// Each rank runs its list in line; a SEND ends only together with its RECV. So both ends of a channel agree on the
  /// order, too.
  void check_rendezvous() {
    std::vector<std::size_t> at(schedule_.ranks.size());
    const auto head = [&](std::size_t rank) -> std::optional<Op> {
      return at[rank] == schedule_.ranks[rank].size() ? std::nullopt : std::optional(schedule_.ranks[rank][at[rank]]);
    };
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t rank = 0; rank < at.size(); ++rank) {
        for (auto op = head(rank); op && !is_receive(op->kind); op = head(rank)) {
          if (is_send(op->kind)) {
            const Op receive = matching_receive(*op);
            const int peer = schedule_.rank_of(receive.stage);
            if (peer < 0 || peer >= static_cast<int>(at.size()) || head(peer) != receive) break;
            ++at[peer];
          }
          ++at[rank];
          progress = true;
        }
      }
    }
    for (std::size_t rank = 0; rank < at.size(); ++rank) {
      if (const auto op = head(rank))
        report(rank, "unbuffered sends hang it at {} (operation {})", to_text(*op), at[rank]);
    }
  }

  void count_activations(const std::vector<Op>& ops) {
    std::map<StageId, int> held;
    for (const Op& op : ops) {
      if (op.kind == OpKind::forward && op.stage.value >= 0 && op.stage.value < schedule_.stages) {
        int& peak = proof_.peak_activations[op.stage.value];
        peak = std::max(peak, ++held[op.stage]);
      }
      if (makes_input_gradient(op.kind)) --held[op.stage];
    }
  }

  const Schedule& schedule_;
  std::vector<std::map<Op, std::vector<std::size_t>>> places_;  ///< per rank
  bool trains_ = false;
  Proof proof_;
};

}  // namespace

Proof validate(const Schedule& lowered) { return Validator(lowered).run(); }

}  // namespace orthant::pipeline
