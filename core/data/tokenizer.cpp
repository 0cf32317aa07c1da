// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/data/tokenizer.hpp>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <orthant/core/base/atomic_file.hpp>
#include <orthant/core/base/error.hpp>
#include <orthant/core/base/mapped_file.hpp>

namespace orthant::data {
namespace {

/// Feeds the trainer line by line, so that the text is not copied.
class LineIterator final : public sentencepiece::SentenceIterator {
 public:
  explicit LineIterator(std::string_view text) : rest_(text) { Next(); }
  bool done() const override { return done_; }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }
  void Next() override {
    done_ = rest_.empty();
    const std::size_t end = std::min(rest_.find('\n'), rest_.size());
    line_.assign(rest_.substr(0, end));
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
  }

 private:
  std::string_view rest_;
  std::string line_;
  bool done_ = false;
};

}  // namespace

Tokenizer::Tokenizer(const std::filesystem::path& model)
    : processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {
  const MappedFile file(model, raise_as<DataError>);
  const auto text = file.text();
  if (!text.empty() && processor_->LoadFromSerializedProto({text.data(), text.size()}).ok()) return;
  throw DataError(fmt::format("{}: is not a SentencePiece model; make one with orthant data prepare", model.string()));
}

Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::int64_t Tokenizer::vocab_size() const { return processor_->GetPieceSize(); }

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int> tokens;
  const auto status = processor_->Encode({text.data(), text.size()}, &tokens);
  if (!status.ok()) throw DataError("tokenizer: cannot encode: " + status.ToString());
  return tokens;
}

std::string Tokenizer::decode(const std::vector<std::int32_t>& tokens) const {
  const auto outside = std::find_if(tokens.begin(), tokens.end(), [&](auto t) { return t < 0 || t >= vocab_size(); });
  if (outside != tokens.end()) {
    throw DataError(fmt::format("tokenizer: token {} is outside the vocabulary of {}", *outside, vocab_size()));
  }
  std::string text;
  const auto status = processor_->Decode(tokens, &text);
  if (!status.ok()) throw DataError("tokenizer: cannot decode: " + status.ToString());
  return text;
}

void train_tokenizer(std::string_view text, std::int64_t vocab_size, const std::filesystem::path& model) {
  constexpr std::int64_t kMaxVocabSize = 1 << 24;
  if (vocab_size < kMinVocabSize || vocab_size > kMaxVocabSize) {
    throw DataError(fmt::format("tokenizer: vocab_size = {} must be in [{}, {}]: 256 bytes, 3 marks and pieces",
                                vocab_size, kMinVocabSize, kMaxVocabSize));
  }
  LineIterator lines(text);
  std::string proto;
  const std::unordered_map<std::string, std::string> options{
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(vocab_size)},
      {"byte_fallback", "true"},
      {"split_digits", "true"},
      {"character_coverage", "0.9999"},  // the rarest letters become bytes: they are not worth a place
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"add_dummy_prefix", "false"},
      {"max_sentence_length", "1073741824"},  // else the trainer skips long lines in silence
      {"num_threads", "2"},
      {"minloglevel", "2"}};
  const auto status = sentencepiece::SentencePieceTrainer::Train(options, &lines, &proto);
  if (!status.ok()) {
    throw DataError(
        fmt::format("tokenizer: vocab_size = {} does not suit {} bytes of text: {}; choose another vocab_size or "
                    "give more text",
                    vocab_size, text.size(), status.ToString()));
  }
  AtomicFile file(model, 0644, raise_as<DataError>);
  file.append(std::as_bytes(std::span(proto)));
  file.commit();
}

}  // namespace orthant::data
