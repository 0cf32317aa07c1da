// SPDX-License-Identifier: Apache-2.0
// How a contribution enters a gradient buffer.
#pragma once

#include <cstdint>

namespace orthant::model::kernels {

/// overwrite ignores what the buffer held (it may be uninitialised).
enum class Accumulate : std::uint8_t { overwrite, add };

}  // namespace orthant::model::kernels
