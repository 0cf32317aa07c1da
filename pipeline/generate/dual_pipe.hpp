// SPDX-License-Identifier: Apache-2.0
// Every rank works for two directions of micro-batches, one on its way to the turn of the pipeline and one on its way
// back, and runs the forward of the one with the backward of the other as a pair (Op::joins_next), so that each hides
// the other's communication. Sources: DeepSeek-AI 2024 (DualPipe); its cut in half by Sea AI Lab 2025 (DualPipeV).
#pragma once

#include <string>

#include <orthant/pipeline/generate/request.hpp>

namespace orthant::pipeline {

/// Two stages a rank, down and back again.
Schedule dualpipe_v(const ScheduleRequest& request);
/// Two copies of the pipeline, from both ends; the first takes the first half of the micro-batches. The halves of the
/// ranks do what the ranks of dualpipe_v do with half as many micro-batches.
Schedule dualpipe(const ScheduleRequest& request);

/// Both: at least two micro-batches a rank.
std::string dualpipe_v_rule(const ScheduleRequest& request);
/// And an even number of ranks and of micro-batches.
std::string dualpipe_rule(const ScheduleRequest& request);

}  // namespace orthant::pipeline
