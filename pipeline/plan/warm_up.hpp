// SPDX-License-Identifier: Apache-2.0
// Where a step may be entered before the step before it is settled (post-validation): the forwards with which every
// rank begins. They, and nothing else, can be done again.
#pragma once

#include <span>
#include <vector>

#include <orthant/pipeline/plan/layer_task.hpp>

namespace orthant::pipeline {

/// Per rank, how many operations of a lowered training schedule come before its first B, I or W, cut back so that each
/// message among them has both its ends there.
std::vector<std::size_t> warm_up_ops(const Schedule& lowered);

struct SplitTasks {
  std::vector<LayerTask> warm_up;
  std::vector<LayerTask> rest;
};

/// tasks  of one rank, from expand(); `ops` of its operations are the warm-up. A gather whose first reader is in the
/// rest goes there too.
SplitTasks split_warm_up(std::span<const LayerTask> tasks, std::size_t ops);

}  // namespace orthant::pipeline
