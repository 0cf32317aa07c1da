// SPDX-License-Identifier: Apache-2.0
// The one place where the four parallelisms meet.
#pragma once

#include <memory>

#include <orthant/dp/engine.hpp>
#include <orthant/fsdp/engine.hpp>
#include <orthant/launch/parallel_model.hpp>
#include <orthant/tp/tp_options.hpp>

namespace orthant::launch {

// What a rank is composed from, as data: for the memory plan, too.

step::RankSpec rank_spec(const RunConfig& run, const PipelinePlan& plan, const mesh::Coordinate& at);
/// stage 0
dp::Options dp_options(const RunConfig& run);
/// stages 1 to 3
fsdp::Options fsdp_options(const RunConfig& run);
tp::TpOptions tp_options(const RunConfig& run);

/// Composes this rank's part of the model: layers sharded over tp, a stage of them over pp, parameters over dp. Initial
/// weights depend on the seed and on global names only. Allocates. Collective: all ranks agree on whether
/// post-validation's copies fit.
/// mesh  made for plan.topology().
std::unique_ptr<ParallelModel> parallelize(const RunConfig& run, const PipelinePlan& plan, mesh::DeviceMesh& mesh,
                                           RankContext context, step::BatchReader reader);

}  // namespace orthant::launch
