// SPDX-License-Identifier: Apache-2.0
// The one place where the four parallelisms meet.
#pragma once

#include <memory>

#include <orthant/launch/parallel_model.hpp>

namespace orthant::launch {

/// Composes this rank's part of the model: layers sharded over tp, a stage of them over pp, parameters over dp. Initial
/// weights depend on the seed and on global names only. Allocates. Collective: all ranks agree on whether
/// post-validation's copies fit.
/// mesh  made for plan.topology().
std::unique_ptr<ParallelModel> parallelize(const RunConfig& run, const PipelinePlan& plan, mesh::DeviceMesh& mesh,
                                           RankContext context, step::BatchReader reader);

}  // namespace orthant::launch
