// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/optim/update_master.hpp>  // first: sets the vector width

#include <orthant/core/optim/optimizer.hpp>

namespace orthant::optim {
namespace {

/// T of master and gradient, M of the momentum.
template <class T, class M>
void sgd(const ShardState& shard, const SgdOptions& options, double grad_scale) {
  using Block = detail::kernels::Block<T>;
  using detail::kernels::load;
  const Block scale(static_cast<T>(grad_scale)), decay(static_cast<T>(shard.decays ? options.weight_decay : 0.0));
  const Block momentum(static_cast<T>(options.momentum)), lr(static_cast<T>(options.lr));
  const T* const grads = shard.grad.const_data_ptr<T>();
  M* const velocities = shard.exp_avg.mutable_data_ptr<M>();
  detail::update_master<T>(shard, [&](const Block& master, std::int64_t at, std::int64_t count) {
    Block direction = load(grads + at, count) * scale + decay * master;
    if (options.momentum != 0.0) {
      direction = direction + momentum * load(velocities + at, count);
      detail::kernels::store<M>(direction, velocities + at, count);
    }
    return master - lr * direction;
  });
}

}  // namespace

void sgd_step(ShardState& shard, const SgdOptions& options, double grad_scale) {
  detail::check(shard);
  ++shard.updates;
  AT_DISPATCH_FLOATING_TYPES(shard.master.scalar_type(), "sgd_step", [&] {
    detail::with_moment_type<scalar_t>(shard, [&]<class M>(M) { sgd<scalar_t, M>(shard, options, grad_scale); });
  });
}

}  // namespace orthant::optim
