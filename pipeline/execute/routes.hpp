// SPDX-License-Identifier: Apache-2.0
// Where each stage of a rank gets its data from and where it goes: by a channel to another rank, or by hand to another
// stage of the same rank.
#pragma once

#include <functional>
#include <map>

#include <orthant/core/comm/lane.hpp>
#include <orthant/core/train/stage_program.hpp>
#include <orthant/pipeline/schedule/message.hpp>

namespace orthant::pipeline {

/// One stage's activations, or its gradients.
struct Route {
  comm::ChannelLane in;   ///< null channel: nothing comes by message
  comm::ChannelLane out;  ///< null channel: nothing goes by message
  StageId handed_from;    ///< the stage of this rank that hands over; -1: none
  StageId handed_to;      ///< the stage of this rank that it is handed to; -1: none

  bool receives() const { return in.channel != nullptr; }
  bool gives() const { return out.channel != nullptr || handed_to.value >= 0; }
};

using Routes = std::map<std::pair<StageId, train::Payload>, Route>;

/// Routes of all stages of `rank`; `lane_of` looks a channel's end on this rank up.
Routes routes_of(const Schedule& schedule, int rank,
                 const std::function<comm::ChannelLane(const ChannelKey&)>& lane_of);

}  // namespace orthant::pipeline
