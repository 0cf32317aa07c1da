// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/optim/gradient_norm.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <orthant/core/base/error.hpp>

namespace orthant::optim {
namespace {

constexpr std::int64_t kBlock = 16384;  // elements with one partial sum, whoever computes it

/// Independent lanes, so that the compiler may use vectors without changing the order of any sum.
template <class T>
double block_sum(const T* values, std::int64_t count) {
  constexpr int kLanes = 16;
  std::array<double, kLanes> lanes{};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double value = static_cast<double>(values[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (int lane = 0; i < count; ++i, ++lane)
    lanes[lane] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return std::accumulate(lanes.begin(), lanes.end(), 0.0);
}

}  // namespace

double sum_of_squares(const at::Tensor& values) {
  if (!values.is_contiguous()) throw ShapeError("sum_of_squares: the tensor must be flat");
  const std::int64_t count = values.numel();
  const std::int64_t blocks = (count + kBlock - 1) / kBlock;
  std::vector<double> partial(blocks);
  AT_DISPATCH_FLOATING_TYPES(values.scalar_type(), "sum_of_squares", [&] {
    const auto* data = values.const_data_ptr<scalar_t>();
    at::parallel_for(0, blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b)
        partial[b] = block_sum(data + b * kBlock, std::min(kBlock, count - b * kBlock));
    });
  });
  return std::accumulate(partial.begin(), partial.end(), 0.0);
}

double clip_scale(double norm, double max_norm) {
  if (max_norm == 0.0) return 1.0;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace orthant::optim
