// SPDX-License-Identifier: Apache-2.0
// From one text file to a data set: tokenizer.model, train.tokens, validation.tokens and dataset.json in a folder.
// dataset.json is written last and says what the others were made from: with it there, and matching, there is nothing
// to do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace orthant::data {

struct PrepareOptions {
  std::filesystem::path input = {};      ///< one UTF-8 text
  std::filesystem::path output = {};     ///< folder, made if need be
  std::int64_t vocab_size = 2048;        ///< of the tokenizer to train; not used with `tokenizer`
  std::filesystem::path tokenizer = {};  ///< existing SentencePiece model; empty: train one on the training part
  double validation_fraction = 0.05;     ///< the end of the text, cut at a line, goes to validation
};

/// What dataset.json says.
struct DatasetSummary {
  std::string source;  ///< name of the text file
  std::int64_t source_bytes = 0;
  std::int64_t vocab_size = 0;
  std::int64_t train_tokens = 0;
  std::int64_t validation_tokens = 0;
  double validation_fraction = 0;
  double bigram_loss = 0;  ///< validation loss of the interpolated bigram model, nats a token
  std::uint64_t train_fingerprint = 0;
  std::uint64_t validation_fingerprint = 0;
  bool up_to_date = false;  ///< prepare() found everything there and did nothing
};

/// Makes the data set, or finds it made already from the same text with the same options.
/// Throws  DataError: the text is not UTF-8 (with the byte's offset) or is too short, the options do not suit it, a
/// file cannot be
///         read or written.
DatasetSummary prepare(const PrepareOptions& options);

struct Inspection {
  DatasetSummary summary;
  std::string first_text;  ///< the first 64 training tokens, decoded
};

/// What is in `folder`, with the fingerprints of both token files checked.
/// Throws  DataError if a file is missing or damaged.
Inspection inspect(const std::filesystem::path& folder);

}  // namespace orthant::data
