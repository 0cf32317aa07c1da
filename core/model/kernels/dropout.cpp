// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/dropout.hpp>

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <orthant/core/base/philox.hpp>
#include <orthant/core/model/kernels/expect.hpp>

namespace orthant::model::kernels {
namespace {

/// body(element, factor) for each element of [N, D]: 0 where it is left out, else 1 / (1 - rate).
template <class Body>
void for_factors(std::int64_t rows, std::int64_t columns, const DropoutRows& of, const Body& body) {
  const auto threshold = static_cast<std::uint64_t>(of.rate * 0x1p32);
  const double kept = 1 / (1 - of.rate);
  at::parallel_for(0, rows, 1 + 4096 / (columns + 1), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const auto position = (of.first_row + n) / of.batch;
      const auto sample = static_cast<std::uint64_t>(of.first_sample + (of.first_row + n) % of.batch);
      PhiloxCounter random{};
      for (std::int64_t d = 0; d < columns; ++d) {
        const auto element = static_cast<std::uint64_t>(position * columns + d);
        if (d == 0 || element % 4 == 0) random = philox(element / 4, sample, of.key);
        body(n * columns + d, random[element % 4] < threshold ? 0.0 : kept);
      }
    }
  });
}

}  // namespace

at::Tensor add_dropout(const at::Tensor& residual, const at::Tensor& update, const DropoutRows& rows) {
  expect(residual, "residual", update.scalar_type(), {-1, -1});
  expect(update, "update", update.scalar_type(), {residual.size(0), residual.size(1)});
  auto out = at::empty_like(residual);
  visit_type(update.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const T *from = residual.const_data_ptr<T>(), *added = update.const_data_ptr<T>();
    T* const to = out.mutable_data_ptr<T>();
    for_factors(out.size(0), out.size(1), rows, [&](std::int64_t i, double factor) {
      to[i] = static_cast<T>(static_cast<double>(from[i]) + factor * static_cast<double>(added[i]));
    });
  });
  return out;
}

at::Tensor dropout_backward(const at::Tensor& dout, const DropoutRows& rows) {
  expect(dout, "dout", dout.scalar_type(), {-1, -1});
  auto dupdate = at::empty_like(dout);
  visit_type(dout.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const T* const from = dout.const_data_ptr<T>();
    T* const to = dupdate.mutable_data_ptr<T>();
    for_factors(dout.size(0), dout.size(1), rows,
                [&](std::int64_t i, double factor) { to[i] = static_cast<T>(factor * static_cast<double>(from[i])); });
  });
  return dupdate;
}

}  // namespace orthant::model::kernels
