// SPDX-License-Identifier: Apache-2.0
// Which sequence the n-th sample of a run is: a pure function of (seed, n), with no memory and no regard to the mesh,
// so that a run resumed anywhere, on any mesh, sees the same data. Shuffling is a permutation per epoch: a Feistel
// network on the next power of four, walked until it lands inside (Black & Rogaway 2002, "Ciphers with arbitrary finite
// domains").
#pragma once

#include <cstdint>

namespace orthant::data {

struct SampleOrder {
  std::int64_t sequences = 0;  ///< sequences of the data set, >= 1
  std::uint64_t seed = 0;
  bool shuffle = true;  ///< false: in order

  /// Epoch of sample `counter` (>= 0), from 0.
  std::int64_t epoch(std::int64_t counter) const { return counter / sequences; }
  /// Sequence in [0, sequences) of sample `counter` (>= 0). Each epoch visits each sequence once.
  std::int64_t sequence(std::int64_t counter) const;
};

/// Sequences of `seq_len` tokens in a file of `tokens`: sequence n has inputs [n * seq_len, (n + 1) * seq_len) and
/// targets one on.
constexpr std::int64_t sequences_in(std::int64_t tokens, std::int64_t seq_len) {
  return tokens < 1 ? 0 : (tokens - 1) / seq_len;
}

}  // namespace orthant::data
