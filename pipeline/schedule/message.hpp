// SPDX-License-Identifier: Apache-2.0
// Which data a compute operation needs and makes: the one place that knows that activations go to the stage after and
// gradients to the stage before. A SEND and a RECV carry the stage that owns them: `s SEND a m` pairs with `s+1 RECV a
// m`. Between two stages of one rank (the turn of a V) nothing is sent: the data is handed over.
#pragma once

#include <compare>
#include <optional>

#include <orthant/pipeline/schedule/schedule.hpp>

namespace orthant::pipeline {

/// The stage that gives F, B or I of this stage its input (the one before, or after); none at the pipeline's ends, for
/// W and for what is no computation.
std::optional<StageId> source_stage(const Schedule& schedule, const Op& op);
/// The stage that takes what F, B or I makes; none likewise.
std::optional<StageId> target_stage(const Schedule& schedule, const Op& op);

/// The RECV that must stand before F, B or I on its rank; none where source_stage() is none or on the same rank.
std::optional<Op> receive_before(const Schedule& schedule, const Op& op);
/// The SEND of what F, B or I makes; none likewise.
std::optional<Op> send_after(const Schedule& schedule, const Op& op);
/// The RECV at the other end of a SEND.
Op matching_receive(const Op& send);
/// The SEND at the other end of a RECV.
Op matching_send(const Op& receive);

/// One direction between two ranks, for activations or for gradients: messages of a channel arrive in the order of
/// sending, whichever stages they belong to.
struct ChannelKey {
  int source = 0;
  int destination = 0;
  bool gradient = false;
  friend constexpr auto operator<=>(const ChannelKey&, const ChannelKey&) = default;
};

/// The channel of a SEND or a RECV.
ChannelKey channel_of(const Schedule& schedule, const Op& message);

}  // namespace orthant::pipeline
