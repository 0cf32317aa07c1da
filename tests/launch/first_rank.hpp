// SPDX-License-Identifier: Apache-2.0
// What a run submits, without running it: one training step of the first rank on the virtual clock.
#pragma once

#include <memory>
#include <vector>

#include <orthant/core/stream/virtual_clock.hpp>
#include <orthant/launch/parallelize.hpp>
#include <orthant/tests/harness/run_ranks.hpp>

namespace orthant::launch {

inline std::vector<stream::TaskRecord> records_of_first_rank(const RunConfig& run, const PipelinePlan& plan) {
  std::vector<stream::TaskRecord> records;
  orthant::tests::run_ranks(run.mesh.pp * run.mesh.dp, [&](comm::Fabric& fabric) {
    trace::Tracer tracer;
    std::unique_ptr<ParallelModel> model;
    stream::VirtualClock clock;
    const RankContext context{.fabric = fabric,
                              .scheduler = clock,
                              .tracer = tracer,
                              .compute = clock.add_stream("compute", stream::StreamKind::compute)};
    mesh::DeviceMesh mesh(fabric, clock, run.mesh_shape(), plan.topology(false));
    model = parallelize(run, plan, mesh, context, {});
    static_cast<void>(model->submit_step(0, 1e-3));
    if (fabric.rank() == 0) records.assign(clock.records().begin(), clock.records().end());
  });
  return records;
}

}  // namespace orthant::launch
