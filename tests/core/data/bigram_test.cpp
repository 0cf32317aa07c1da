// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/data/bigram.hpp>

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>

namespace orthant::data {
namespace {

using Tokens = std::vector<std::int64_t>;

/// A Markov chain: after v comes v + 1 or v + 2 (mod `states`), evenly.
Tokens chain(std::size_t length, std::int64_t states, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Tokens tokens{0};
  while (tokens.size() < length)
    tokens.push_back((tokens.back() + 1 + static_cast<std::int64_t>(random() % 2)) % states);
  return tokens;
}

Tokens noise(std::size_t length, std::int64_t vocab_size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Tokens tokens;
  while (tokens.size() < length)
    tokens.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(vocab_size)));
  return tokens;
}

TEST(BigramCounts, AreTheFrequenciesOfTokensAndPairs) {
  const BigramCounts counts(Tokens{0, 1, 0, 1, 0, 2}, 4);
  EXPECT_EQ(counts.followed(0), 3);
  EXPECT_EQ(counts.followed(2), 0);
  EXPECT_EQ(counts.estimates(0, 1), (std::array<double, 3>{2.0 / 3.0, 2.0 / 6.0, 0.25}));
  EXPECT_EQ(counts.estimates(0, 3), (std::array<double, 3>{0.0, 0.0, 0.25}));
  EXPECT_EQ(counts.estimates(2, 0), (std::array<double, 3>{0.0, 0.5, 0.25}));
}

TEST(BigramModel, ProbabilitiesOfAllTokensSumToOneAndNoneIsZero) {
  const BigramModel model(chain(500, 5, 1), 8);  // 5, 6 and 7 are never seen
  for (std::int64_t v = 0; v < 8; ++v) {
    double sum = 0;
    for (std::int64_t w = 0; w < 8; ++w) {
      EXPECT_GT(model.probability(v, w), 0.0);
      sum += model.probability(v, w);
    }
    EXPECT_NEAR(sum, 1.0, 1e-12);
  }
}

TEST(BigramModel, ReachesTheEntropyOfAMarkovChain) {
  const BigramModel model(chain(50000, 10, 1), 10);
  EXPECT_NEAR(model.loss(chain(20000, 10, 2)), std::log(2.0), 0.01);
}

TEST(BigramModel, FallsBackToTheUniformOnNoise) {
  // 2000 pairs over 1000 * 1000: pair counts say nothing, and weights that trusted them would cost much more than
  // log(1000).
  const BigramModel model(noise(2000, 1000, 1), 1000);
  EXPECT_LT(model.loss(noise(5000, 1000, 2)), std::log(1000.0) + 0.1);
}

TEST(BigramModel, IsTheMeanOverAllTokensButTheFirst) {
  const BigramModel model(chain(500, 5, 1), 8);
  const Tokens tokens{0, 1, 7};
  EXPECT_DOUBLE_EQ(model.loss(tokens), -(std::log(model.probability(0, 1)) + std::log(model.probability(1, 7))) / 2);
}

TEST(BigramModel, RefusesTooLittleText) {
  EXPECT_THROW(BigramModel(chain(BigramModel::kMinTokens - 1, 5, 1), 5), DataError);
  EXPECT_NO_THROW(BigramModel(chain(BigramModel::kMinTokens, 5, 1), 5));
  EXPECT_THROW(BigramModel(chain(100, 5, 1), 5).loss(Tokens{1}), DataError);
}

}  // namespace
}  // namespace orthant::data
