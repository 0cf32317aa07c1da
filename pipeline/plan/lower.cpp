// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/plan/lower.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <span>
#include <utility>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/pipeline/cost/costs.hpp>
#include <orthant/pipeline/schedule/message.hpp>

namespace orthant::pipeline {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kAnyNumber = std::numeric_limits<int>::max();

/// Plays the schedule: a rank takes its list in order and begins as soon as the input is there; computations do not
/// wait for sends. A computation enters its rank's list when it begins, a message both lists when it leaves.
class Player {
 public:
  Player(const Schedule& schedule, int slots, double message_cost)
      : source_(schedule),
        message_cost_(message_cost),
        ranks_(schedule.ranks.size()),
        inputs_(2 * static_cast<std::size_t>(schedule.stages * schedule.microbatches)),
        result_(schedule) {
    result_.slots = slots;
    for (auto& ops : result_.ranks) ops.clear();
    for (const auto& ops : schedule.ranks) {
      for (const Op& op : ops) require_known(op);
    }
  }

  void run() {
    do {
      while (leave_or_begin()) {
      }
    } while (advance_clock());
  }

  /// Where the ranks stand that did not begin all; "" if none.
  std::string stuck() const {
    std::string text;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const auto& ops = source_.ranks[rank];
      if (ranks_[rank].next < ops.size()) text += fmt::format("; rank {} at {}", rank, to_text(ops[ranks_[rank].next]));
    }
    return text;
  }

  double now() const { return now_; }
  Schedule take() { return std::move(result_); }

 private:
  struct Rank {
    std::size_t next = 0;
    std::size_t running = 0;  ///< operations that run: 0, 1, or 2 of a pair; they stand before `next`
    double end = kNever;      ///< of these
  };
  struct Channel {
    std::vector<Op> made;     ///< SENDs in the order of their producers' ends
    std::vector<bool> begun;  ///< the message's reader has
    std::size_t left = 0;     ///< how many of them
    double arrival = kNever;  ///< of the one on its way
  };
  /// What a computation takes from another stage.
  struct Input {
    bool there = false;
    Channel* channel = nullptr;  ///< that it came by
    std::size_t message = 0;     ///< its number there
  };

  void require_known(const Op& op) const {
    const bool stage = op.stage.value >= 0 && op.stage.value < source_.stages;
    const bool known =
        is_compute(op.kind) && stage && op.microbatch.value >= 0 && op.microbatch.value < source_.microbatches;
    if (known) return;
    throw InternalError(fmt::format("schedule {}: {} is no computation of {} stages and {} micro-batches", source_.name,
                                    to_text(op), source_.stages, source_.microbatches));
  }

  Input& input_of(OpKind reader, StageId stage, MicrobatchId microbatch) {
    const int row = (reader == OpKind::forward ? 0 : source_.stages) + stage.value;
    return inputs_[static_cast<std::size_t>(row * source_.microbatches + microbatch.value)];
  }
  /// Null: it needs none.
  Input* input_of(const Op& op) {
    return source_stage(source_, op) ? &input_of(op.kind, op.stage, op.microbatch) : nullptr;
  }

  std::span<const Op> step_at(std::size_t rank, std::size_t first) const {
    const auto& ops = source_.ranks[rank];
    return std::span(ops).subspan(first, ops[first].joins_next && first + 1 < ops.size() ? 2 : 1);
  }

  /// At one moment messages leave first.
  bool leave_or_begin() {
    bool progress = false;
    for (auto& [key, channel] : channels_) {
      while (leave(key, channel)) progress = true;
    }
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) progress |= begin(rank);
    return progress;
  }

  bool leave(const ChannelKey& key, Channel& channel) {
    const std::size_t k = channel.left, slots = static_cast<std::size_t>(result_.slots);
    if (k == channel.made.size() || channel.arrival < kNever || (k >= slots && !channel.begun[k - slots])) return false;
    result_.ranks[key.source].push_back(channel.made[k]);
    result_.ranks[key.destination].push_back(matching_receive(channel.made[k]));
    ++channel.left;
    channel.arrival = now_ + message_cost_;
    if (message_cost_ == 0) arrive(channel);
    return true;
  }

  void arrive(Channel& channel) {
    channel.arrival = kNever;
    const std::size_t k = channel.left - 1;
    const Op receive = matching_receive(channel.made[k]);
    const OpKind reader = receive.kind == OpKind::receive_activation ? OpKind::forward : OpKind::backward;
    input_of(reader, receive.stage, receive.microbatch) = {.there = true, .channel = &channel, .message = k};
  }

  bool begin(std::size_t rank) {
    Rank& state = ranks_[rank];
    if (state.running > 0 || state.next == source_.ranks[rank].size()) return false;
    const auto step = step_at(rank, state.next);
    for (const Op& op : step) {
      const Input* input = input_of(op);
      if (input != nullptr && !input->there) return false;
    }
    state.end = now_;
    for (const Op& op : step) {
      const Input* input = input_of(op);
      if (input != nullptr && input->channel != nullptr) input->channel->begun[input->message] = true;
      result_.ranks[rank].push_back(op);
      state.end += cost_of(op.kind, StageCosts{});
    }
    state.running = step.size();
    state.next += step.size();
    return true;
  }

  /// To the next end or arrival; false when nothing runs.
  bool advance_clock() {
    double first = kNever;
    for (const Rank& rank : ranks_) first = std::min(first, rank.end);
    for (const auto& [key, channel] : channels_) first = std::min(first, channel.arrival);
    if (first == kNever) return false;
    now_ = first;
    for (auto& [key, channel] : channels_) {
      if (channel.arrival == now_) arrive(channel);
    }
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].end == now_) end(rank);
    }
    return true;
  }

  void end(std::size_t rank) {
    Rank& state = ranks_[rank];
    for (const Op& op : step_at(rank, state.next - state.running)) {
      if (const auto message = send_after(source_, op)) {
        Channel& channel = channels_[channel_of(source_, *message)];
        channel.made.push_back(*message);
        channel.begun.push_back(false);
      } else if (const auto target = target_stage(source_, op)) {
        input_of(op.kind, *target, op.microbatch).there = true;
      }
    }
    state.running = 0;
    state.end = kNever;
  }

  const Schedule& source_;
  const double message_cost_;
  double now_ = 0;
  std::vector<Rank> ranks_;
  std::map<ChannelKey, Channel> channels_;
  std::vector<Input> inputs_;  ///< of F, then of B or I: per stage and micro-batch
  Schedule result_;
};

/// With a message cost of which every sum is exact.
double makespan(const Schedule& schedule, int slots) {
  Player player(schedule, slots, 1.0 / 64);
  player.run();
  return player.stuck().empty() ? player.now() : kNever;
}

}  // namespace

Schedule lower(const Schedule& schedule, int slots) {
  invariant(schedule.slots == 0 && slots >= 1, "lower() takes compute operations only, and at least one slot");
  Player player(schedule, slots, 0);
  player.run();
  if (const std::string stuck = player.stuck(); !stuck.empty()) {
    throw InternalError(fmt::format("schedule {} cannot be lowered with {}{}", schedule.name,
                                    slots == kAnyNumber ? "any number of slots" : fmt::format("{} slot(s)", slots),
                                    stuck));
  }
  Schedule lowered = player.take();
  if (!trains(schedule)) return lowered;
  for (auto& ops : lowered.ranks) {
    for (const OpKind kind : {OpKind::norm_units, OpKind::tie, OpKind::norm, OpKind::step})
      ops.push_back({kind, {}, {}});
  }
  return lowered;
}

int slots_for(const Schedule& schedule) {
  const double fastest = makespan(schedule, kAnyNumber);
  if (fastest == kNever) lower(schedule, kAnyNumber);  // throws
  int slots = 1;
  while (makespan(schedule, slots) > fastest) ++slots;
  return slots;
}

}  // namespace orthant::pipeline
