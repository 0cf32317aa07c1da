// SPDX-License-Identifier: Apache-2.0
// The published orders on a V, which take every operation for equally long. Sources: Qi et al. 2024 (ZB-V); Qi et al.
// 2024 (Pipeline Parallelism with Controllable Memory: V-Min, V-Half), whose building block is repeated every six cells
// and then squeezed.
#pragma once

#include <orthant/pipeline/generate/order.hpp>

namespace orthant::pipeline {

enum class VShape : std::uint8_t { zero_bubble, half, third };

/// Most activations of a chunk that a rank holds: 2 p, and about a half and a third of it.
int published_peak(VShape shape, int ranks);

/// When F of a rank's first stage, F of its second, I of its second and I of its first begin, in cells of one
/// operation; the next micro-batch kBlockCells later. Not of zero_bubble.
std::array<int, 4> block_offsets(VShape shape, int ranks, int rank);
constexpr int kBlockCells = 6;

/// problem  on v_placement(); its costs do not matter.
Order published_order(const OrderProblem& problem, VShape shape);

}  // namespace orthant::pipeline
