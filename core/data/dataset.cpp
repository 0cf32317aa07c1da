// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/data/dataset.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <xxhash.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/atomic_file.hpp>
#include <orthant/core/base/error.hpp>
#include <orthant/core/base/mapped_file.hpp>
#include <orthant/core/data/bigram.hpp>
#include <orthant/core/data/token_file.hpp>
#include <orthant/core/data/tokenizer.hpp>
#include <orthant/core/data/utf8.hpp>

namespace orthant::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;
/// The bigram model counts at most this many tokens, the last ones: more would cost memory (16 bytes a token) for
/// little.
constexpr std::int64_t kMostBigramTokens = std::int64_t{1} << 25;

std::string hash_of(std::string_view bytes) { return fmt::format("{:016x}", XXH64(bytes.data(), bytes.size(), 0)); }

/// What the data set depends on; equal to the "made_from" of dataset.json when there is nothing to do.
Json made_from(const PrepareOptions& options, std::string_view text) {
  Json from{{"text", hash_of(text)}, {"validation_fraction", options.validation_fraction}};
  if (options.tokenizer.empty()) {
    from["vocab_size"] = options.vocab_size;
  } else {
    from["tokenizer"] = hash_of(MappedFile(options.tokenizer, raise_as<DataError>).text());
  }
  return from;
}

DatasetSummary read_summary(const fs::path& folder, Json* from) {
  const fs::path path = folder / "dataset.json";
  const MappedFile file(path, raise_as<DataError>);
  try {
    const Json json = Json::parse(file.text());
    if (json.at("format").get<int>() != kFormat)
      throw DataError(fmt::format("{}: is of another version", path.string()));
    DatasetSummary summary;
    json.at("source").get_to(summary.source);
    json.at("source_bytes").get_to(summary.source_bytes);
    json.at("vocab_size").get_to(summary.vocab_size);
    json.at("train_tokens").get_to(summary.train_tokens);
    json.at("validation_tokens").get_to(summary.validation_tokens);
    json.at("validation_fraction").get_to(summary.validation_fraction);
    json.at("bigram_loss").get_to(summary.bigram_loss);
    summary.train_fingerprint = std::stoull(json.at("train_fingerprint").get<std::string>(), nullptr, 16);
    summary.validation_fingerprint = std::stoull(json.at("validation_fingerprint").get<std::string>(), nullptr, 16);
    if (from != nullptr) *from = json.at("made_from");
    return summary;
  } catch (const std::logic_error& error) {
    throw DataError(fmt::format("{}: {}; run orthant data prepare again", path.string(), error.what()));
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("{}: {}; run orthant data prepare again", path.string(), error.what()));
  }
}

void write_summary(const fs::path& folder, const DatasetSummary& summary, const Json& from) {
  const Json json{{"format", kFormat},
                  {"source", summary.source},
                  {"source_bytes", summary.source_bytes},
                  {"vocab_size", summary.vocab_size},
                  {"train_tokens", summary.train_tokens},
                  {"validation_tokens", summary.validation_tokens},
                  {"validation_fraction", summary.validation_fraction},
                  {"bigram_loss", summary.bigram_loss},
                  {"train_fingerprint", fmt::format("{:016x}", summary.train_fingerprint)},
                  {"validation_fingerprint", fmt::format("{:016x}", summary.validation_fingerprint)},
                  {"made_from", from}};
  write_text_file(folder / "dataset.json", json.dump(2) + "\n", raise_as<DataError>);
}

/// Opens a token file and compares it with what dataset.json says of it.
TokenFile open_tokens(const fs::path& path, std::int64_t count, std::uint64_t fingerprint) {
  TokenFile tokens(path);
  if (tokens.size() == count && tokens.fingerprint() == fingerprint) return tokens;
  throw DataError(
      fmt::format("{}: is not the file that dataset.json describes; run orthant data prepare again", path.string()));
}

/// The data set that is there already, if it was made from the same things and is whole.
std::optional<DatasetSummary> find_made(const fs::path& folder, const Json& wanted) {
  if (!fs::exists(folder / "dataset.json")) return std::nullopt;
  try {
    Json from;
    DatasetSummary summary = read_summary(folder, &from);
    if (from != wanted) return std::nullopt;
    open_tokens(folder / "train.tokens", summary.train_tokens, summary.train_fingerprint);
    open_tokens(folder / "validation.tokens", summary.validation_tokens, summary.validation_fingerprint);
    Tokenizer(folder / "tokenizer.model");
    summary.up_to_date = true;
    return summary;
  } catch (const DataError&) {
    return std::nullopt;  // damaged: made again
  }
}

void check_text(std::string_view text, const PrepareOptions& options) {
  const std::string name = options.input.string();
  if (text.empty()) throw DataError(fmt::format("{}: is empty; give a text", name));
  if (const auto bad = find_invalid_utf8(text)) {
    throw DataError(
        fmt::format("{}: is not UTF-8: bad byte 0x{:02x} at offset {}; convert it, e.g. with iconv -t UTF-8", name,
                    static_cast<unsigned char>(text[*bad]), *bad));
  }
  const double fraction = options.validation_fraction;
  if (!(fraction > 0.0 && fraction <= 0.5)) {
    throw DataError(fmt::format("validation_fraction = {} must be above 0 and at most 0.5", fraction));
  }
}

/// Where the validation part begins: behind the last newline at or before the wanted place, so that a part is never too
/// long.
std::size_t split_place(std::string_view text, const PrepareOptions& options) {
  const auto wanted =
      static_cast<std::size_t>(std::floor(static_cast<double>(text.size()) * (1.0 - options.validation_fraction)));
  auto newline = wanted == 0 ? std::string_view::npos : text.rfind('\n', wanted - 1);
  if (newline == std::string_view::npos) newline = text.find('\n', wanted);
  if (newline == std::string_view::npos || newline + 1 == text.size()) {
    throw DataError(fmt::format("{}: has no two lines to divide into training and validation; break it into lines",
                                options.input.string()));
  }
  return newline + 1;
}

/// Encodes `text` line by line, newlines included, into a token file.
void encode_file(std::string_view text, const Tokenizer& tokenizer, const fs::path& path) {
  TokenFileWriter writer(path, tokenizer.vocab_size());
  while (!text.empty()) {
    const std::size_t length = std::min(text.find('\n'), text.size() - 1) + 1;
    writer.append(tokenizer.encode(text.substr(0, length)));
    text.remove_prefix(length);
  }
  writer.finish();
}

std::vector<std::int64_t> last_tokens(const TokenFile& file, std::int64_t most) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(std::min(file.size(), most)));
  file.read(file.size() - std::ssize(tokens), tokens);
  return tokens;
}

}  // namespace

DatasetSummary prepare(const PrepareOptions& options) {
  const MappedFile input(options.input, raise_as<DataError>);
  const std::string_view text = input.text();
  check_text(text, options);
  const Json from = made_from(options, text);
  if (auto made = find_made(options.output, from)) return *made;

  const std::size_t place = split_place(text, options);
  std::error_code error;
  fs::create_directories(options.output, error);
  if (error) throw DataError(fmt::format("{}: cannot be made: {}", options.output.string(), error.message()));
  fs::remove(options.output / "dataset.json", error);  // from here on the folder is not a data set until the end

  const fs::path model = options.output / "tokenizer.model";
  if (options.tokenizer.empty()) {
    train_tokenizer(text.substr(0, place), options.vocab_size, model);  // validation text is not seen, not even here
  } else {
    write_text_file(model, MappedFile(options.tokenizer, raise_as<DataError>).text(), raise_as<DataError>);
  }
  const Tokenizer tokenizer(model);
  encode_file(text.substr(0, place), tokenizer, options.output / "train.tokens");
  encode_file(text.substr(place), tokenizer, options.output / "validation.tokens");

  const TokenFile train(options.output / "train.tokens"), validation(options.output / "validation.tokens");
  const BigramModel bigram(last_tokens(train, kMostBigramTokens), tokenizer.vocab_size());
  const DatasetSummary summary{.source = options.input.filename().string(),
                               .source_bytes = static_cast<std::int64_t>(text.size()),
                               .vocab_size = tokenizer.vocab_size(),
                               .train_tokens = train.size(),
                               .validation_tokens = validation.size(),
                               .validation_fraction = options.validation_fraction,
                               .bigram_loss = bigram.loss(last_tokens(validation, kMostBigramTokens)),
                               .train_fingerprint = train.fingerprint(),
                               .validation_fingerprint = validation.fingerprint()};
  write_summary(options.output, summary, from);
  return summary;
}

Inspection inspect(const std::filesystem::path& folder) {
  Inspection inspection{read_summary(folder, nullptr), ""};
  const DatasetSummary& summary = inspection.summary;
  const TokenFile train = open_tokens(folder / "train.tokens", summary.train_tokens, summary.train_fingerprint);
  train.verify();
  open_tokens(folder / "validation.tokens", summary.validation_tokens, summary.validation_fingerprint).verify();
  std::vector<std::int64_t> first(static_cast<std::size_t>(std::min<std::int64_t>(train.size(), 64)));
  train.read(0, first);
  inspection.first_text = Tokenizer(folder / "tokenizer.model").decode({first.begin(), first.end()});
  return inspection;
}

}  // namespace orthant::data
