// SPDX-License-Identifier: Apache-2.0
// The yardstick: an interpolated bigram model, p(w|v) = l2 count(v,w)/count(v) + l1 count(w)/N + l0/V. A network whose
// validation loss is not below this one's has learnt nothing beyond pairs of tokens. The weights l depend on how often
// v was seen and are found by expectation maximisation on held-out training tokens (Jelinek & Mercer 1980, deleted
// interpolation).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace orthant::data {

/// Counts of tokens and of pairs of neighbours.
class BigramCounts {
 public:
  /// tokens  ids in [0, vocab_size), at least 2.
  BigramCounts(std::span<const std::int64_t> tokens, std::int64_t vocab_size);

  /// Maximum-likelihood estimates of w after v: {count(v,w)/count(v), count(w)/N, 1/V}; the first is 0 if v was never
  /// followed.
  std::array<double, 3> estimates(std::int64_t v, std::int64_t w) const;
  /// How often v was followed by anything.
  std::int64_t followed(std::int64_t v) const { return followed_[v]; }

 private:
  std::vector<std::int64_t> occurs_;                          ///< [V] count(w)
  std::vector<std::int64_t> followed_;                        ///< [V] count(v) as the first of a pair
  std::vector<std::int64_t> row_;                             ///< [V + 1] where the pairs of v begin in pairs_
  std::vector<std::pair<std::int64_t, std::int64_t>> pairs_;  ///< (w, count), by v then w
  double total_ = 0;
};

class BigramModel {
 public:
  /// Fits the weights with counts of the first nine tenths on the last tenth, then counts all of `train`.
  /// Deterministic. train  ids in [0, vocab_size), at least kMinTokens. Throws  DataError if there are fewer.
  BigramModel(std::span<const std::int64_t> train, std::int64_t vocab_size);

  /// Mean negative log-probability, in nats a token, of all tokens but the first: what the trainer's loss measures.
  double loss(std::span<const std::int64_t> tokens) const;
  /// p(w|v); sums to 1 over w.
  double probability(std::int64_t v, std::int64_t w) const;

  static constexpr std::int64_t kMinTokens = 20;

 private:
  using Weights = std::array<double, 3>;  ///< l2, l1, l0
  static std::vector<Weights> fit(const BigramCounts& counts, std::span<const std::int64_t> held_out);

  std::vector<Weights> weights_;  ///< by bucket of how often v was followed
  BigramCounts counts_;
};

}  // namespace orthant::data
