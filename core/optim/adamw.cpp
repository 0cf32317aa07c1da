// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/optim/update_master.hpp>  // first: sets the vector width

#include <cmath>

#include <orthant/core/optim/optimizer.hpp>

namespace orthant::optim {
namespace {

/// The numbers of one step, worked out in fp64 and rounded to the slice's precision.
template <class T>
struct Factors {
  using Block = detail::kernels::Block<T>;
  Factors(const AdamWOptions& options, std::int64_t step, double scale, bool decays)
      : grad_scale(static_cast<T>(scale)),
        one_minus_beta1(static_cast<T>(1.0 - options.beta1)),
        beta2(static_cast<T>(options.beta2)),
        one_minus_beta2(static_cast<T>(1.0 - options.beta2)),
        keep(static_cast<T>(decays ? 1.0 - options.lr * options.weight_decay : 1.0)),
        root_correction(static_cast<T>(std::sqrt(1.0 - std::pow(options.beta2, static_cast<double>(step))))),
        eps(static_cast<T>(options.eps)),
        step_size(static_cast<T>(options.lr / (1.0 - std::pow(options.beta1, static_cast<double>(step))))) {}

  Block grad_scale, one_minus_beta1, beta2, one_minus_beta2, keep, root_correction, eps, step_size;
};

/// T of master and gradient, M of the moments.
template <class T, class M>
void adamw(const ShardState& shard, const Factors<T>& f) {
  using Block = detail::kernels::Block<T>;
  using detail::kernels::load;
  using detail::kernels::store;
  const T* const grads = shard.grad.const_data_ptr<T>();
  M* const means = shard.exp_avg.mutable_data_ptr<M>();
  M* const variances = shard.exp_avg_sq.mutable_data_ptr<M>();
  detail::update_master<T>(shard, [&](const Block& master, std::int64_t at, std::int64_t count) {
    const Block grad = load(grads + at, count) * f.grad_scale;
    const Block old_mean = load(means + at, count);
    const Block mean = old_mean + f.one_minus_beta1 * (grad - old_mean);
    const Block variance = f.beta2 * load(variances + at, count) + f.one_minus_beta2 * grad * grad;
    store<M>(mean, means + at, count);
    store<M>(variance, variances + at, count);
    const Block denominator = variance.sqrt() / f.root_correction + f.eps;
    return master * f.keep - f.step_size * (mean / denominator);
  });
}

}  // namespace

void adamw_step(ShardState& shard, const AdamWOptions& options, double grad_scale) {
  detail::check(shard);
  ++shard.updates;
  AT_DISPATCH_FLOATING_TYPES(shard.master.scalar_type(), "adamw_step", [&] {
    const Factors<scalar_t> factors(options, shard.updates, grad_scale, shard.decays);
    detail::with_moment_type<scalar_t>(shard, [&]<class M>(M) { adamw<scalar_t, M>(shard, factors); });
  });
}

}  // namespace orthant::optim
