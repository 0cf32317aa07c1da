// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/data/sample_order.hpp>

#include <bit>

namespace orthant::data {
namespace {

constexpr int kRounds = 8;

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): each input bit flips each output bit about half of the time.
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// One pass of a balanced Feistel network over 2 * `half_bits` bits: a permutation whatever the round function is.
std::uint64_t feistel(std::uint64_t value, int half_bits, std::uint64_t key) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = value >> half_bits, right = value & mask;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const std::uint64_t mixed = mix(key ^ mix(right + (round + 1) * 0x9e3779b97f4a7c15u));
    const std::uint64_t next = left ^ (mixed & mask);
    left = right;
    right = next;
  }
  return left << half_bits | right;
}

}  // namespace

std::int64_t SampleOrder::sequence(std::int64_t counter) const {
  const std::int64_t place = counter % sequences;
  if (!shuffle || sequences == 1) return place;
  const std::uint64_t key = mix(seed + 0x9e3779b97f4a7c15u * mix(static_cast<std::uint64_t>(epoch(counter)) + 1));
  const int bits = std::bit_width(static_cast<std::uint64_t>(sequences - 1));
  const int half_bits = (bits + 1) / 2;
  auto walked = static_cast<std::uint64_t>(place);
  do {  // under four passes on average: the domain is less than four times `sequences`
    walked = feistel(walked, half_bits, key);
  } while (walked >= static_cast<std::uint64_t>(sequences));
  return static_cast<std::int64_t>(walked);
}

}  // namespace orthant::data
