// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/execute/routes.hpp>

namespace orthant::pipeline {

Routes routes_of(const Schedule& schedule, int rank,
                 const std::function<comm::ChannelLane(const ChannelKey&)>& lane_of) {
  Routes routes;
  for (const StageId stage : schedule.stages_of(rank)) {
    for (const auto payload : {train::Payload::activation, train::Payload::gradient}) {
      const bool gradient = payload == train::Payload::gradient;
      const Op op{gradient ? OpKind::backward : OpKind::forward, stage, {}};
      Route& route = routes[{stage, payload}];
      if (const auto source = source_stage(schedule, op)) {
        const int peer = schedule.rank_of(*source);
        if (peer == rank) {
          route.handed_from = *source;
        } else {
          route.in = lane_of({peer, rank, gradient});
        }
      }
      if (const auto target = target_stage(schedule, op)) {
        const int peer = schedule.rank_of(*target);
        if (peer == rank) {
          route.handed_to = *target;
        } else {
          route.out = lane_of({rank, peer, gradient});
        }
      }
    }
  }
  return routes;
}

}  // namespace orthant::pipeline
