// SPDX-License-Identifier: Apache-2.0
// What a task does with a layer: the word that schedule, model and executor share.
#pragma once

#include <cstdint>

namespace orthant {

/// backward = backward_input (I) and backward_weight (W) at once.
enum class Phase : std::uint8_t { forward, backward, backward_input, backward_weight };

}  // namespace orthant
