// SPDX-License-Identifier: Apache-2.0
// Errors of the CUDA runtime as exceptions; only the module includes it.
#pragma once

#include <string>

#include <cuda_runtime_api.h>

#include <orthant/core/base/error.hpp>

namespace orthant::cuda {

/// Throws InternalError with the name of the call. The error is taken out of the runtime, which would report it at the
/// next, innocent call.
inline void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw InternalError(std::string(call) + ": " + cudaGetErrorString(error));
}

}  // namespace orthant::cuda
