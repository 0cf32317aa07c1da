// SPDX-License-Identifier: Apache-2.0
// How real_driver.cpp reaches the kernel of rank_sum.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <orthant/core/cuda/command.hpp>

namespace orthant::cuda {

/// Enqueues the sum on `stream`; sum.out.count > 0. False, without a launch, for types that it does not add; launch
/// errors are left to cudaGetLastError.
bool launch_rank_sum(const SumRows& sum, cudaStream_t stream);

}  // namespace orthant::cuda
