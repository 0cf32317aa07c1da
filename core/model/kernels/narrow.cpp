// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/simd.hpp>  // first: sets the vector width

#include <orthant/core/base/error.hpp>
#include <orthant/core/model/kernels/narrow.hpp>

namespace orthant::model::kernels {

void narrow_in_place(const at::Tensor& values) {
  invariant(values.is_contiguous() && values.scalar_type() == at::kFloat, "narrow_in_place() wants flat fp32 values");
  if (!values.is_cpu()) {
    const auto narrow = values.to(at::kBFloat16);
    values.view(at::kBFloat16).narrow(0, 0, values.numel()).copy_(narrow);
    return;
  }
  // Front to back by one thread: a block is read whole before it is written, and lies behind everything written so far.
  const float* const from = values.const_data_ptr<float>();
  auto* const to = reinterpret_cast<at::BFloat16*>(values.mutable_data_ptr<float>());
  for_blocks<float>(values.numel(), [&](std::int64_t i, std::int64_t count) {
    store<at::BFloat16>(load(from + i, count), to + i, count);
  });
}

}  // namespace orthant::model::kernels
