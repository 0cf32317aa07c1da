// SPDX-License-Identifier: Apache-2.0
// V-Min and V-Half on a raster of cells that take one operation each: blocks repeated, then tightened at both ends.
// Source: Qi et al. 2024 (Pipeline Parallelism with Controllable Memory), section 3 and its reordering.
#pragma once

#include <orthant/pipeline/generate/v_pattern.hpp>

namespace orthant::pipeline {

/// The blocks of block_offsets(), the next micro-batch kBlockCells later. What lies before the first and behind the
/// last repetition begins earlier where inputs, free cells and the memory of the blocks allow; W's fill free cells.
Order tightened_blocks(const OrderProblem& problem, VShape shape);

}  // namespace orthant::pipeline
