// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/stream/task.hpp>

namespace orthant::stream {
namespace {

// Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators" (the SplitMix64 finaliser).
constexpr std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace

Content content_of(const char* kind, std::int64_t a, std::int64_t b, std::int64_t c) {
  Content content = 0;
  for (; *kind != '\0'; ++kind) content = mix(content ^ static_cast<unsigned char>(*kind));
  for (const std::int64_t number : {a, b, c}) content = mix(content ^ static_cast<std::uint64_t>(number));
  return content == 0 ? 1 : content;
}

}  // namespace orthant::stream
