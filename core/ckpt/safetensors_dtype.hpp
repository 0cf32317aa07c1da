// SPDX-License-Identifier: Apache-2.0
// Element types as safetensors files name them. More kinds can be read than Orthant computes with: a file that holds an
// F16 tensor among others is sound, and only asking for that tensor as a DType fails.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <orthant/core/base/dtype.hpp>

namespace orthant::ckpt {

/// "BF16", "F32", …
std::string_view safetensors_name(DType type);
/// The type of that name, if Orthant has it.
std::optional<DType> dtype_named(std::string_view safetensors_name);
/// Bits of one element, for every type of the format; nothing for an unknown name.
std::optional<std::uint64_t> bits_of(std::string_view safetensors_name);

}  // namespace orthant::ckpt
