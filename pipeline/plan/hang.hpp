// SPDX-License-Identifier: Apache-2.0
// Can a lowered schedule stand still for ever? Asked of the two ways to run it: on streams, as the executor does, and
// in line. Both keep the slots: the k-th receive of a channel begins only when the reader of the one `slots` before it
// has begun.
#pragma once

#include <string>
#include <vector>

#include <orthant/pipeline/plan/joint_graph.hpp>
#include <orthant/pipeline/schedule/schedule.hpp>

namespace orthant::pipeline {

/// What the executor submits, per rank: computations on one stream, in order; each end of a channel on a stream of its
/// own; before a computation that reads messages a TAKE of no duration, which waits for them, and which frees their
/// slots. A SEND and its RECV are together.
/// lowered  complete (validate.hpp).
std::vector<std::vector<PlannedTask>> plan_on_streams(const Schedule& lowered);

/// Where it stands still when each rank runs its list in line and a SEND ends only together with its RECV, the
/// strictest transport; "": nowhere.
std::string hang_in_line(const Schedule& lowered);

}  // namespace orthant::pipeline
