// SPDX-License-Identifier: Apache-2.0
// Philox 4x32-10: a random function, not a generator: (key, counter) -> 128 bits, without state, so that a value
// depends on what it is for and not on who asks for it, when, or on which mesh. Source: Salmon, Moraes, Dror, Shaw
// 2011, "Parallel random numbers: as easy as 1, 2, 3".
#pragma once

#include <array>
#include <cstdint>

namespace orthant {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

constexpr PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

/// Counter (block, stream) and key, each of 64 bits.
constexpr PhiloxCounter philox(std::uint64_t block, std::uint64_t stream, std::uint64_t key) {
  const auto low = [](std::uint64_t value) { return static_cast<std::uint32_t>(value); };
  const auto high = [](std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); };
  return philox(PhiloxCounter{low(block), high(block), low(stream), high(stream)}, PhiloxKey{low(key), high(key)});
}

}  // namespace orthant
