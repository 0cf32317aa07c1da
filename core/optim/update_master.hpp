// SPDX-License-Identifier: Apache-2.0
// The one loop over a slice that all optimizers share. Blocks and remainder take the same instructions
// (core/model/kernels/simd.hpp), so that an element's bits do not depend on where it lies. Only .cpp files of this
// folder include this.
#pragma once

#include <orthant/core/model/kernels/simd.hpp>  // first: sets the vector width

#include <ATen/Dispatch.h>
#include <orthant/core/base/error.hpp>
#include <orthant/core/optim/shard_state.hpp>

namespace orthant::optim::detail {

namespace kernels = model::kernels;

inline bool has_own_weights(const ShardState& shard) { return !shard.weight.is_same(shard.master); }

inline void check(const ShardState& shard) {
  const auto fits = [&](const at::Tensor& tensor) {
    return tensor.is_contiguous() && tensor.numel() == shard.master.numel() &&
           tensor.scalar_type() == shard.master.scalar_type();
  };
  const auto fits_as_moment = [&](const at::Tensor& tensor) {
    const bool narrow = shard.master.scalar_type() == at::kFloat && tensor.scalar_type() == at::kBFloat16;
    return fits(tensor) || (narrow && tensor.is_contiguous() && tensor.numel() == shard.master.numel());
  };
  if (!shard.trains) throw ShapeError("optimizer: the slice's unit never trains");
  if (!fits(shard.master) || !fits(shard.grad) || !fits_as_moment(shard.exp_avg) || !fits_as_moment(shard.exp_avg_sq) ||
      shard.exp_avg.scalar_type() != shard.exp_avg_sq.scalar_type()) {
    throw ShapeError(
        "optimizer: master, gradient and moments of a slice must be flat, of one size, and of one type (moments may be "
        "bf16 beside fp32)");
  }
  const bool narrow = shard.master.scalar_type() == at::kFloat && shard.weight.scalar_type() == at::kBFloat16;
  if (has_own_weights(shard) && !(narrow && shard.weight.numel() == shard.master.numel())) {
    throw ShapeError("optimizer: a slice's weights are its master, or bf16 beside an fp32 master of the same size");
  }
}

/// body(M{}) with the type of the moments beside a master of type T.
template <class T, class Body>
void with_moment_type(const ShardState& shard, const Body& body) {
  if constexpr (std::is_same_v<T, float>) {
    if (shard.exp_avg.scalar_type() == at::kBFloat16) return body(at::BFloat16{});
  }
  body(T{});
}

/// master = update(master, at, count) for each block of `count` elements from `at`; refreshes bf16 weights of their
/// own.
template <class T, class Update>
void update_master(const ShardState& shard, const Update& update) {
  T* const master = shard.master.mutable_data_ptr<T>();
  auto* const weight = has_own_weights(shard) ? shard.weight.mutable_data_ptr<at::BFloat16>() : nullptr;
  at::parallel_for(0, shard.master.numel(), 16384, [&](std::int64_t begin, std::int64_t end) {
    kernels::for_blocks<T>(end - begin, [&](std::int64_t i, std::int64_t count) {
      const std::int64_t at = begin + i;
      const auto updated = update(kernels::load(master + at, count), at, count);
      kernels::store<T>(updated, master + at, count);
      if constexpr (std::is_same_v<T, float>) {
        if (weight != nullptr) kernels::store<at::BFloat16>(updated, weight + at, count);
      }
    });
  });
}

}  // namespace orthant::optim::detail
