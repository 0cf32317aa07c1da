// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/generate/zero_bubble.hpp>

#include <orthant/pipeline/generate/rank_writer.hpp>

namespace orthant::pipeline {
namespace {

/// `steps` forwards of warm-up for each rank behind this one, `steps` micro-batches of lag for each rank before it.
Schedule with_steps(const ScheduleRequest& request, int steps) {
  return write_schedule(request, loop_placement(request.ranks, 1), [&](RankWriter& writer, int rank) {
    RankWriter::one_forward_one_input(
        request.microbatches, steps * (request.ranks - 1 - rank), steps * rank,
        [&](int m) { writer.add(OpKind::forward, rank, m); },
        [&](int m) { writer.add(OpKind::backward_input, rank, m); },
        [&](int m) { writer.add(OpKind::backward_weight, rank, m); });
  });
}

}  // namespace

Schedule zb_h1(const ScheduleRequest& request) { return with_steps(request, 1); }
Schedule zb_h2(const ScheduleRequest& request) { return with_steps(request, 2); }

}  // namespace orthant::pipeline
