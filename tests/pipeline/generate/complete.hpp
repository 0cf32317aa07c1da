// SPDX-License-Identifier: Apache-2.0
// Whether a schedule does everything once and in order.
#pragma once

#include <map>
#include <utility>

#include <gtest/gtest.h>

#include <orthant/pipeline/cost/timing.hpp>

namespace orthant::pipeline {

/// Each F, I and W once per stage and micro-batch, in micro-batch order on the stage's rank, I after F, W after I; and
/// the ranks do not wait for each other for ever.
inline void expect_complete(const Schedule& schedule) {
  SCOPED_TRACE(testing::Message() << schedule.name << " p" << schedule.ranks.size() << " m" << schedule.microbatches);
  std::map<std::pair<int, OpKind>, int> done;  // of a stage
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (const Op& op : schedule.ranks[rank]) {
      const int stage = op.stage.value;
      EXPECT_EQ(schedule.rank_of(op.stage), static_cast<int>(rank)) << to_text(op);
      EXPECT_EQ(op.microbatch.value, (done[{stage, op.kind}]++)) << to_text(op);
      if (op.kind != OpKind::forward) {
        const OpKind needed = op.kind == OpKind::backward_input ? OpKind::forward : OpKind::backward_input;
        EXPECT_LT(op.microbatch.value, (done[{stage, needed}])) << to_text(op);
      }
    }
  }
  for (int stage = 0; stage < schedule.stages; ++stage)
    for (const OpKind kind : {OpKind::forward, OpKind::backward_input, OpKind::backward_weight})
      EXPECT_EQ((done[{stage, kind}]), schedule.microbatches) << letters(kind) << " s" << stage;
  EXPECT_NO_THROW(time_schedule(schedule, {}));
}

}  // namespace orthant::pipeline
