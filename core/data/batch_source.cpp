// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/data/batch_source.hpp>

#include <utility>
#include <vector>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>

namespace orthant::data {
namespace {

std::int64_t checked_sequences(const TokenFile& tokens, std::int64_t seq_len) {
  if (seq_len < 1) throw ConfigError(fmt::format("seq_len = {} must be at least 1", seq_len));
  const std::int64_t sequences = sequences_in(tokens.size(), seq_len);
  if (sequences >= 1) return sequences;
  throw DataError(fmt::format("{}: {} tokens are fewer than seq_len + 1 = {}; use a shorter seq_len or more text",
                              tokens.path().string(), tokens.size(), seq_len + 1));
}

/// Writes one sequence into column `sample` of the batch.
void fill_sample(const TokenFile& tokens, std::int64_t sequence, std::vector<std::int64_t>& window,
                 std::pair<std::int64_t, BatchView> place) {
  const auto& [sample, out] = place;
  const std::int64_t seq_len = std::ssize(window) - 1;
  tokens.read(sequence * seq_len, window);
  for (std::int64_t s = 0; s < seq_len; ++s) {
    out.inputs[s * out.count + sample] = window[s];
    out.targets[s * out.count + sample] = window[s + 1];
  }
}

}  // namespace

BatchSource::BatchSource(TokenFile tokens, BatchOptions options) : tokens_(std::move(tokens)), options_(options) {
  if (options.global_batch < 1)
    throw ConfigError(fmt::format("global_batch = {} must be at least 1", options.global_batch));
  order_ = {checked_sequences(tokens_, options.seq_len), options.seed, options.shuffle};
}

void BatchSource::microbatch(std::int64_t step, std::int64_t first, BatchView out) const {
  invariant(step >= 0 && first >= 0 && first + out.count <= options_.global_batch,
            "micro-batch outside the global batch");
  std::vector<std::int64_t> window(static_cast<std::size_t>(options_.seq_len) + 1);
  const std::int64_t counter = step * options_.global_batch + first;
  for (std::int64_t b = 0; b < out.count; ++b) fill_sample(tokens_, order_.sequence(counter + b), window, {b, out});
}

ValidationSource::ValidationSource(TokenFile tokens, std::int64_t seq_len)
    : tokens_(std::move(tokens)), seq_len_(seq_len), sequences_(checked_sequences(tokens_, seq_len)) {}

void ValidationSource::batch(std::int64_t first, BatchView out) const {
  invariant(first >= 0, "validation batch before the first sequence");
  std::vector<std::int64_t> window(static_cast<std::size_t>(seq_len_) + 1);
  for (std::int64_t b = 0; b < out.count; ++b) {
    if (first + b < sequences_) {
      fill_sample(tokens_, first + b, window, {b, out});
      continue;
    }
    for (std::int64_t s = 0; s < seq_len_; ++s) {
      out.inputs[s * out.count + b] = 0;
      out.targets[s * out.count + b] = kIgnoreIndex;
    }
  }
}

}  // namespace orthant::data
