// SPDX-License-Identifier: Apache-2.0
// A timeline in letters, for terminals, READMEs and tests; svg.hpp draws one for browsers.
#pragma once

#include <string>
#include <vector>

#include <orthant/pipeline/cost/timing.hpp>

namespace orthant::pipeline {

/// A line a rank, a column for each time that the shortest operation takes (or longer ones, so that there are at most
/// 400), "." where the rank is idle. Of an overlapped pair, F stands first, with a "&".
/// compute  compute operations only; ops  as Timing::ops.
std::string draw(const Schedule& compute, const std::vector<std::vector<Interval>>& ops);

}  // namespace orthant::pipeline
