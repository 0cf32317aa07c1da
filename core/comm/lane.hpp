// SPDX-License-Identifier: Apache-2.0
// A lane: a communicator together with the request stream that its operations are ordered on. What strategies are
// given.
#pragma once

#include <orthant/core/comm/collectives.hpp>
#include <orthant/core/stream/task.hpp>

namespace orthant::comm {

struct Lane {
  Collectives* collectives = nullptr;  ///< null: this rank is no member
  stream::StreamId stream;
};

struct ChannelLane {
  Channel* channel = nullptr;  ///< null: there is no such neighbour
  stream::StreamId stream;
};

}  // namespace orthant::comm
