// SPDX-License-Identifier: Apache-2.0
// The residencies of the ladder, by name.
#pragma once

#include <orthant/core/train/stage_layout.hpp>

namespace orthant::fsdp {

inline constexpr train::Residencies kChunk{};
inline constexpr train::Residencies kLayer{train::Residency::layer, train::Residency::layer};
inline constexpr train::Residencies kWeightsStay{train::Residency::chunk, train::Residency::layer};

}  // namespace orthant::fsdp
