// SPDX-License-Identifier: Apache-2.0
// Runs bodies of layers as a trainer does: a compute task each, with nested collectives and segments as declared.
#pragma once

#include <functional>
#include <utility>

#include <orthant/core/comm/lane.hpp>
#include <orthant/core/model/layer_pass.hpp>
#include <orthant/core/stream/scheduler.hpp>

namespace orthant::tp::tests {

class Tasks {
 public:
  Tasks(stream::Scheduler& scheduler, comm::Collectives& group)
      : scheduler_(scheduler),
        compute_(scheduler.add_stream("compute", stream::StreamKind::compute)),
        lane_{&group, scheduler.add_stream("tp", stream::StreamKind::request)} {}

  comm::Lane lane() const { return lane_; }

  /// What `pass` and `body` refer to must outlive the scheduler: when another rank fails, this throws while the body
  /// still runs.
  void run(const char* name, model::LayerPass& pass, model::Declaration declared, std::function<void()> body) {
    scheduler_.wait(scheduler_.submit({.name = name,
                                       .stream = compute_,
                                       .reads = {},
                                       .writes = {},
                                       .body =
                                           [&pass, body = std::move(body)](stream::TaskScope& scope) {
                                             pass.scope = &scope;
                                             pass.posted = 0;
                                             body();
                                           },
                                       .start = {},
                                       .nested = std::move(declared.nested),
                                       .segments = std::move(declared.segments)}));
  }

 private:
  stream::Scheduler& scheduler_;
  stream::StreamId compute_;
  comm::Lane lane_;
};

}  // namespace orthant::tp::tests
