// SPDX-License-Identifier: Apache-2.0
// Inputs and targets from a token file, sequence-first as the model wants them: token s of sample b lies at [s * count
// + b].
#pragma once

#include <cstdint>

#include <orthant/core/data/sample_order.hpp>
#include <orthant/core/data/token_file.hpp>

namespace orthant::data {

/// Target of a sample that is not there: the loss ignores it.
inline constexpr std::int64_t kIgnoreIndex = -1;

/// Where a batch goes. View: the caller owns both arrays of seq_len * count.
struct BatchView {
  std::int64_t count = 0;           ///< samples
  std::int64_t* inputs = nullptr;   ///< [seq_len][count]
  std::int64_t* targets = nullptr;  ///< [seq_len][count], one token on
};

struct BatchOptions {
  std::int64_t seq_len = 0;
  std::int64_t global_batch = 0;  ///< samples a step, over all ranks
  std::uint64_t seed = 0;
  bool shuffle = true;
};

/// Training data. Which ranks ask for which samples does not change what a sample is.
class BatchSource {
 public:
  /// Throws  DataError if the file has not one sequence; ConfigError if an option is below 1.
  BatchSource(TokenFile tokens, BatchOptions options);

  /// Fills `out` with samples [first, first + out.count) of step `step` (from 0); first + out.count <= global_batch.
  /// Throws  DataError for a damaged file.
  void microbatch(std::int64_t step, std::int64_t first, BatchView out) const;

  std::int64_t sequences() const { return order_.sequences; }
  std::int64_t epoch(std::int64_t step) const { return order_.epoch(step * options_.global_batch); }
  const TokenFile& tokens() const { return tokens_; }

 private:
  TokenFile tokens_;
  BatchOptions options_;
  SampleOrder order_;
};

/// Validation data, in order, each sequence once.
class ValidationSource {
 public:
  /// Throws  as BatchSource.
  ValidationSource(TokenFile tokens, std::int64_t seq_len);

  std::int64_t sequences() const { return sequences_; }
  std::int64_t batches(std::int64_t batch_size) const { return (sequences_ + batch_size - 1) / batch_size; }
  /// Fills `out` with sequences [first, first + out.count). Those past the end get input 0 and target kIgnoreIndex.
  void batch(std::int64_t first, BatchView out) const;
  const TokenFile& tokens() const { return tokens_; }

 private:
  TokenFile tokens_;
  std::int64_t seq_len_;
  std::int64_t sequences_;
};

}  // namespace orthant::data
