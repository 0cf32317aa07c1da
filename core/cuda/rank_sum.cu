// SPDX-License-Identifier: Apache-2.0
// The SumRows kernel: bound by memory, so one element a thread and no tiling.
#include <orthant/core/cuda/launch_rank_sum.hpp>

#include <algorithm>

#include <orthant/core/cuda/rank_sum.cuh>

namespace orthant::cuda {
namespace {

template <class Acc, class In, class Out>
__global__ void sum_rows(const In* in, int rows, std::int64_t count, Out* out, bool accumulate) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    sum_element<Acc>(in, rows, count, out, i, accumulate);
  }
}

}  // namespace

bool launch_rank_sum(const SumRows& sum, cudaStream_t stream) {
  constexpr int kThreads = 256;
  constexpr std::int64_t kMaxBlocks = 4096;
  const std::int64_t count = sum.out.count;
  const auto blocks = static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, kMaxBlocks));
  const bool accumulate = sum.into == comm::Into::accumulate;
  return with_sum_types(sum.in.data, sum.in.type, sum.out.data, sum.out.type, [&](auto acc, auto* in, auto* out) {
    sum_rows<decltype(acc)><<<blocks, kThreads, 0, stream>>>(in, sum.rows, count, out, accumulate);
  });
}

}  // namespace orthant::cuda
