// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/generate/looped.hpp>

#include <orthant/pipeline/generate/rank_writer.hpp>

namespace orthant::pipeline {

Schedule gpipe(const ScheduleRequest& request) { return breadth_first(request); }

Schedule one_f_one_b(const ScheduleRequest& request) {
  return write_schedule(request, loop_placement(request.ranks, 1), [&](RankWriter& writer, int rank) {
    RankWriter::one_forward_one_backward(
        request.microbatches, request.ranks - 1 - rank, [&](int m) { writer.add(OpKind::forward, rank, m); },
        [&](int m) { writer.add(OpKind::backward, rank, m); });
  });
}

Schedule breadth_first(const ScheduleRequest& request) {
  return write_schedule(request, loop_placement(request.ranks, request.chunks), [&](RankWriter& writer, int rank) {
    for (int chunk = 0; chunk < request.chunks; ++chunk) {
      for (int m = 0; m < request.microbatches; ++m) writer.add(OpKind::forward, chunk * request.ranks + rank, m);
    }
    for (int chunk = request.chunks - 1; chunk >= 0; --chunk) {
      for (int m = 0; m < request.microbatches; ++m) writer.add(OpKind::backward, chunk * request.ranks + rank, m);
    }
  });
}

}  // namespace orthant::pipeline
