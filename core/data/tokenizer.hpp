// SPDX-License-Identifier: Apache-2.0
// Text to tokens and back, by SentencePiece: BPE with byte fallback and no normalisation, so that decode(encode(text))
// == text for every valid UTF-8 text without U+2581 (the sign that SentencePiece itself uses for a space).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace orthant::data {

class Tokenizer {
 public:
  /// Loads a SentencePiece model file.
  /// Throws  DataError if it cannot be read or is not one.
  explicit Tokenizer(const std::filesystem::path& model);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  std::int64_t vocab_size() const;
  /// Tokens of `text`, without begin or end marks. No piece of a trained model spans a newline, so texts cut behind
  /// newlines give the same tokens as the whole.
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// Throws  DataError for an id outside the vocabulary.
  std::string decode(const std::vector<std::int32_t>& tokens) const;

 private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
};

/// Least vocabulary: 256 bytes and 3 marks (unknown, begin, end), and one real piece.
inline constexpr std::int64_t kMinVocabSize = 260;

/// Trains a BPE tokenizer on the lines of `text` (valid UTF-8) and writes it to `model` atomically. The same text and
/// size give the same file. Digits are pieces of their own. Throws  DataError if the size does not suit the text, or
/// the file cannot be written.
void train_tokenizer(std::string_view text, std::int64_t vocab_size, const std::filesystem::path& model);

}  // namespace orthant::data
