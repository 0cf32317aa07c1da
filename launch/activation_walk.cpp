// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/activation_walk.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/pipeline/schedule/message.hpp>

namespace orthant::launch {
namespace {

using pipeline::Op;
using pipeline::OpKind;
using step::LayerBytes;
using step::PhaseBytes;

/// What crosses the border of a stage: from another rank, from another stage of this one, or not at all.
struct Border {
  std::optional<StageId> stage;
  bool is_message = false;
};

class Walk {
 public:
  explicit Walk(const WalkedRank& rank) : rank_(rank), passed_(rank.shape.activation_bytes()) {
    int blocks = 0;
    for (const train::StageLayout& stage : rank.stages) {
      auto& layers = layers_[stage.stage];
      for (const train::LayerUnits& units : stage.layers) {
        const bool is_block = units.layer.value != 0 && units.layer != rank.head;
        const bool recomputes = is_block && blocks++ < rank.checkpoint.blocks;
        layers.push_back(
            units.layer.value == 0 ? step::embedding_bytes(rank.shape)
            : is_block ? step::block_bytes(rank.shape, recomputes ? rank.checkpoint.recompute : model::Recompute{})
                       : step::head_bytes(rank.shape));
      }
    }
  }

  WalkedBytes run() {
    for (const Op& op : rank_.schedule.ranks[static_cast<std::size_t>(rank_.pp_rank)]) {
      if (op.kind == OpKind::forward) forward(op);
      if (makes_input_gradient(op.kind)) backward(op);
      if (op.kind == OpKind::backward_weight) backward_weight(op);
      if (!op.joins_next) live_ -= std::exchange(waits_for_pair_, 0);
    }
    if (live_ != 0) throw InternalError(fmt::format("memory plan: the step leaves {} bytes of activations", live_));
    return {.activations = peak_ + tokens(), .messages = messages()};
  }

 private:
  Border border(std::optional<StageId> stage) const {
    return {stage, stage && rank_.schedule.rank_of(*stage) != rank_.pp_rank};
  }
  void take(const PhaseBytes& phase) {
    peak_ = std::max(peak_, live_ + phase.peak);
    live_ += phase.delta;
  }

  void forward(const Op& op) {
    const auto& layers = layers_.at(op.stage);
    if (border(source_stage(rank_.schedule, op)).is_message) live_ += passed_;
    for (const LayerBytes& layer : layers) take(layer.forward);
    const auto target = border(target_stage(rank_.schedule, op));
    if (target.is_message && !layers.back().keeps_output) give(op);
  }

  void backward(const Op& op) {
    const auto& layers = layers_.at(op.stage);
    if (border(source_stage(rank_.schedule, op)).is_message) live_ += passed_;
    for (std::size_t i = layers.size(); i-- > 0;) {
      take(op.kind == OpKind::backward ? layers[i].backward : layers[i].backward_input);
      if (is_last_holder(op, i)) live_ -= passed_;
    }
    if (border(target_stage(rank_.schedule, op)).is_message) give(op);
  }

  void backward_weight(const Op& op) {
    const auto& layers = layers_.at(op.stage);
    for (std::size_t i = layers.size(); i-- > 0;) take(layers[i].backward_weight);
  }

  /// What is sent is the message's from here on; of a pair, from the end of both.
  void give(const Op& op) {
    if (op.joins_next) {
      waits_for_pair_ += passed_;
    } else {
      live_ -= passed_;
    }
  }

  /// Whether nobody but layer i of the stage holds its input, an activation.
  bool is_last_holder(const Op& op, std::size_t i) const {
    if (i > 0) return !layers_.at(op.stage)[i - 1].keeps_output;
    const auto before = border(target_stage(rank_.schedule, op));  // of backward: where the input came from
    if (!before.stage) return false;                               // tokens
    return before.is_message || !layers_.at(*before.stage).back().keeps_output;
  }

  /// Inputs and targets stay from one step to the next, on every stage that looks at either.
  std::int64_t tokens() const {
    std::int64_t bytes = 0;
    for (const train::StageLayout& stage : rank_.stages) {
      if (stage.layers.front().layer.value != 0 && stage.layers.back().layer != rank_.head) continue;
      const auto [first, end] = rank_.schedule.microbatches_of(stage.stage);
      bytes += 2 * (end - first) * rank_.shape.rows * static_cast<std::int64_t>(sizeof(std::int64_t));
    }
    return bytes;
  }

  /// A receiver holds as many messages of each channel as it has slots; a sender has one under way.
  std::int64_t messages() const {
    std::map<pipeline::ChannelKey, int> received;
    std::set<pipeline::ChannelKey> sent;
    for (const Op& op : rank_.schedule.ranks[static_cast<std::size_t>(rank_.pp_rank)]) {
      if (is_receive(op.kind)) ++received[channel_of(rank_.schedule, op)];
      if (is_send(op.kind)) sent.insert(channel_of(rank_.schedule, op));
    }
    std::int64_t count = 0;
    for (const auto& [channel, messages] : received) count += std::min(messages, rank_.schedule.slots);
    for (const auto& channel : sent) count += channel.gradient ? 1 : 0;  // an activation is mostly kept here as well
    return count * passed_;
  }

  const WalkedRank& rank_;
  const std::int64_t passed_;  ///< bytes of an activation, or of its gradient
  std::map<StageId, std::vector<LayerBytes>> layers_;
  std::int64_t live_ = 0;
  std::int64_t peak_ = 0;
  std::int64_t waits_for_pair_ = 0;
};

}  // namespace

WalkedBytes walk_activations(const WalkedRank& rank) { return Walk(rank).run(); }

}  // namespace orthant::launch
