// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/ckpt/safetensors_dtype.hpp>

#include <algorithm>
#include <array>

namespace orthant::ckpt {
namespace {

struct Kind {
  std::string_view name;
  std::uint64_t bits;
  std::optional<DType> type = std::nullopt;
};

constexpr std::array kKinds{Kind{"BOOL", 8},
                            Kind{"F4", 4},
                            Kind{"F6_E2M3", 6},
                            Kind{"F6_E3M2", 6},
                            Kind{"U8", 8, DType::u8},
                            Kind{"I8", 8},
                            Kind{"F8_E5M2", 8},
                            Kind{"F8_E4M3", 8},
                            Kind{"F8_E8M0", 8},
                            Kind{"F8_E4M3FNUZ", 8},
                            Kind{"F8_E5M2FNUZ", 8},
                            Kind{"I16", 16},
                            Kind{"U16", 16},
                            Kind{"F16", 16},
                            Kind{"BF16", 16, DType::bf16},
                            Kind{"I32", 32},
                            Kind{"U32", 32},
                            Kind{"F32", 32, DType::f32},
                            Kind{"C64", 64},
                            Kind{"F64", 64, DType::f64},
                            Kind{"I64", 64, DType::i64},
                            Kind{"U64", 64}};

const Kind* find_kind(std::string_view name) {
  const auto kind = std::find_if(kKinds.begin(), kKinds.end(), [&](const Kind& k) { return k.name == name; });
  return kind == kKinds.end() ? nullptr : &*kind;
}

}  // namespace

std::string_view safetensors_name(DType type) {
  return std::find_if(kKinds.begin(), kKinds.end(), [&](const Kind& k) { return k.type == type; })->name;
}

std::optional<DType> dtype_named(std::string_view safetensors_name) {
  const Kind* kind = find_kind(safetensors_name);
  return kind == nullptr ? std::nullopt : kind->type;
}

std::optional<std::uint64_t> bits_of(std::string_view safetensors_name) {
  const Kind* kind = find_kind(safetensors_name);
  if (kind == nullptr) return std::nullopt;
  return kind->bits;
}

}  // namespace orthant::ckpt
