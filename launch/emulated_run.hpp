// SPDX-License-Identifier: Apache-2.0
// A run with device.kind = "emulated": the config's schedule on its mesh, with computations that sleep for the times
// that [device] gives. Trains nothing; measures what the engine would make of such devices.
#pragma once

#include <functional>

#include <orthant/core/comm/fabric.hpp>
#include <orthant/launch/run_config.hpp>

namespace orthant::launch {

/// Runs train.steps steps and leaves a run folder: metrics.jsonl (step_ms), summary.json and timeline.svg (predicted
/// and measured). Collective over the ranks of the mesh. Returns an exit code.
/// on_step  called after each, on every rank.
int emulated_run(const RunConfig& run, comm::Fabric& fabric, std::function<void()> on_step);

}  // namespace orthant::launch
