// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/data/bigram.hpp>

#include <algorithm>
#include <bit>
#include <cmath>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>

namespace orthant::data {
namespace {

constexpr int kBuckets = 65;  // bucket 0: never followed; bucket b: [2^(b-1), 2^b) times

int bucket_of(std::int64_t followed) { return std::bit_width(static_cast<std::uint64_t>(followed)); }

double mixed(const std::array<double, 3>& weights, const std::array<double, 3>& estimates) {
  return weights[0] * estimates[0] + weights[1] * estimates[1] + weights[2] * estimates[2];
}

/// Expectation maximisation for one mixture; `prior_weight` pseudo-observations pull it towards `start`.
std::array<double, 3> maximise(const std::vector<std::array<double, 3>>& observed, std::array<double, 3> start,
                               double prior_weight) {
  std::array<double, 3> weights = start;
  for (int round = 0; round < 200; ++round) {
    std::array<double, 3> shares{prior_weight * start[0], prior_weight * start[1], prior_weight * start[2]};
    for (const auto& estimates : observed) {
      const double p = mixed(weights, estimates);
      for (int k = 0; k < 3; ++k) shares[k] += weights[k] * estimates[k] / p;
    }
    const double total = shares[0] + shares[1] + shares[2];
    double change = 0;
    for (int k = 0; k < 3; ++k) {
      change = std::max(change, std::abs(shares[k] / total - weights[k]));
      weights[k] = shares[k] / total;
    }
    if (change < 1e-6) break;
  }
  return weights;
}

std::span<const std::int64_t> checked(std::span<const std::int64_t> tokens, std::int64_t least) {
  if (std::ssize(tokens) >= least) return tokens;
  throw DataError(
      fmt::format("bigram model: {} training tokens are too few, {} are needed; give more text", tokens.size(), least));
}

}  // namespace

BigramCounts::BigramCounts(std::span<const std::int64_t> tokens, std::int64_t vocab_size)
    : occurs_(vocab_size), followed_(vocab_size), row_(vocab_size + 1), total_(static_cast<double>(tokens.size())) {
  std::vector<std::uint64_t> keys;  // v and w in one number, so that sorting brings equal pairs together
  keys.reserve(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    ++occurs_[tokens[i]];
    if (i == 0) continue;
    ++followed_[tokens[i - 1]];
    keys.push_back(static_cast<std::uint64_t>(tokens[i - 1]) << 32 | static_cast<std::uint64_t>(tokens[i]));
  }
  std::sort(keys.begin(), keys.end());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i > 0 && keys[i] == keys[i - 1]) {
      ++pairs_.back().second;
      continue;
    }
    ++row_[(keys[i] >> 32) + 1];
    pairs_.emplace_back(static_cast<std::int64_t>(keys[i] & 0xffffffffu), 1);
  }
  for (std::size_t v = 1; v < row_.size(); ++v) row_[v] += row_[v - 1];
}

std::array<double, 3> BigramCounts::estimates(std::int64_t v, std::int64_t w) const {
  const auto begin = pairs_.begin() + row_[v], end = pairs_.begin() + row_[v + 1];
  const auto pair =
      std::lower_bound(begin, end, w, [](const auto& p, std::int64_t wanted) { return p.first < wanted; });
  const bool seen = pair != end && pair->first == w;
  return {seen ? static_cast<double>(pair->second) / static_cast<double>(followed_[v]) : 0.0,
          static_cast<double>(occurs_[w]) / total_, 1.0 / static_cast<double>(occurs_.size())};
}

BigramModel::BigramModel(std::span<const std::int64_t> train, std::int64_t vocab_size)
    : counts_(checked(train, kMinTokens), vocab_size) {
  const auto kept = train.size() - train.size() / 10;
  weights_ = fit(BigramCounts(train.first(kept), vocab_size), train.subspan(kept - 1));
}

std::vector<BigramModel::Weights> BigramModel::fit(const BigramCounts& counts, std::span<const std::int64_t> held_out) {
  std::vector<std::vector<std::array<double, 3>>> observed(kBuckets);
  std::vector<std::array<double, 3>> all;
  for (std::size_t i = 1; i < held_out.size(); ++i) {
    const auto estimates = counts.estimates(held_out[i - 1], held_out[i]);
    observed[bucket_of(counts.followed(held_out[i - 1]))].push_back(estimates);
    all.push_back(estimates);
  }
  // Buckets with few held-out pairs lean on the weights of all: ten pairs' worth.
  const Weights common = maximise(all, {0.6, 0.3, 0.1}, 1.0);
  std::vector<Weights> weights;
  for (const auto& bucket : observed) weights.push_back(maximise(bucket, common, 10.0));
  // After a token never followed by anything the pair estimate is 0 for every w: its share goes to the other two.
  Weights& unseen = weights[0];
  const double rest = unseen[1] + unseen[2];
  unseen = {0.0, unseen[1] / rest, unseen[2] / rest};
  return weights;
}

double BigramModel::probability(std::int64_t v, std::int64_t w) const {
  return mixed(weights_[bucket_of(counts_.followed(v))], counts_.estimates(v, w));
}

double BigramModel::loss(std::span<const std::int64_t> tokens) const {
  checked(tokens, 2);
  double sum = 0;
  for (std::size_t i = 1; i < tokens.size(); ++i) sum -= std::log(probability(tokens[i - 1], tokens[i]));
  return sum / static_cast<double>(tokens.size() - 1);
}

}  // namespace orthant::data
