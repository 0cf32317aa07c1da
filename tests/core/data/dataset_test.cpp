// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/data/dataset.hpp>

#include <vector>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/data/token_file.hpp>
#include <orthant/core/data/tokenizer.hpp>
#include <orthant/tests/core/base/scratch_folder.hpp>

namespace orthant::data {
namespace {

using orthant::testing::ScratchFolder;
using orthant::testing::slurp;
using orthant::testing::spit;
using orthant::testing::thrown;

std::string numbered_lines() {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "line " + std::to_string(i) + " says that the dog is lazy\n";
  return text;
}

std::string decoded(const std::filesystem::path& folder, const char* name) {
  const TokenFile file(folder / name);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(file.size()));
  file.read(0, tokens);
  return Tokenizer(folder / "tokenizer.model").decode({tokens.begin(), tokens.end()});
}

TEST(Prepare, SplitsTheTextAtALineAndLosesNothing) {
  const ScratchFolder folder;
  const std::string text = numbered_lines();
  spit(folder / "in.txt", text);
  const DatasetSummary summary =
      prepare({.input = folder / "in.txt", .output = folder / "out/deep", .vocab_size = 300});
  const std::string train = decoded(folder / "out/deep", "train.tokens");
  const std::string validation = decoded(folder / "out/deep", "validation.tokens");
  EXPECT_EQ(train + validation, text);
  EXPECT_EQ(train.back(), '\n');
  EXPECT_NEAR(static_cast<double>(train.size()) / static_cast<double>(text.size()), 0.95, 0.01);
  EXPECT_EQ(summary.train_tokens, TokenFile(folder / "out/deep/train.tokens").size());
  EXPECT_EQ(summary.validation_tokens, TokenFile(folder / "out/deep/validation.tokens").size());
  EXPECT_EQ(summary.vocab_size, 300);
  EXPECT_EQ(summary.source, "in.txt");
  EXPECT_FALSE(summary.up_to_date);
  EXPECT_GT(summary.bigram_loss, 0.0);
  EXPECT_LT(summary.bigram_loss, 3.0);  // log(300) = 5.7
}

TEST(Prepare, DoesNothingTheSecondTimeAndRepairsWhatIsDamaged) {
  const ScratchFolder folder;
  spit(folder / "in.txt", numbered_lines());
  const PrepareOptions options{.input = folder / "in.txt", .output = folder / "out", .vocab_size = 300};
  const DatasetSummary first = prepare(options);
  const auto written = std::filesystem::last_write_time(folder / "out/train.tokens");
  const DatasetSummary second = prepare(options);
  EXPECT_TRUE(second.up_to_date);
  EXPECT_EQ(second.train_tokens, first.train_tokens);
  EXPECT_EQ(second.bigram_loss, first.bigram_loss);
  EXPECT_EQ(second.train_fingerprint, first.train_fingerprint);
  EXPECT_EQ(std::filesystem::last_write_time(folder / "out/train.tokens"), written);

  spit(folder / "out/train.tokens", "rubbish");
  EXPECT_FALSE(prepare(options).up_to_date);
  std::filesystem::remove(folder / "out/tokenizer.model");
  EXPECT_FALSE(prepare(options).up_to_date);
  spit(folder / "out/dataset.json", "{\"format\": 1");
  EXPECT_FALSE(prepare(options).up_to_date);
  EXPECT_TRUE(prepare(options).up_to_date);
}

TEST(Prepare, StartsAgainWhenTextOrOptionsChange) {
  const ScratchFolder folder;
  spit(folder / "in.txt", numbered_lines());
  PrepareOptions options{.input = folder / "in.txt", .output = folder / "out", .vocab_size = 300};
  prepare(options);
  options.vocab_size = 310;
  EXPECT_FALSE(prepare(options).up_to_date);
  options.validation_fraction = 0.1;
  EXPECT_FALSE(prepare(options).up_to_date);
  spit(folder / "in.txt", numbered_lines() + "one more\n");
  EXPECT_FALSE(prepare(options).up_to_date);
}

TEST(Prepare, UsesAnExistingTokenizer) {
  const ScratchFolder folder;
  spit(folder / "in.txt", numbered_lines());
  train_tokenizer(numbered_lines(), 290, folder / "own.model");
  const PrepareOptions options{.input = folder / "in.txt", .output = folder / "out", .tokenizer = folder / "own.model"};
  EXPECT_EQ(prepare(options).vocab_size, 290);
  EXPECT_EQ(slurp(folder / "out/tokenizer.model"), slurp(folder / "own.model"));
  EXPECT_TRUE(prepare(options).up_to_date);
}

TEST(Prepare, NamesTheOffsetOfAByteThatIsNotUtf8) {
  const ScratchFolder folder;
  spit(folder / "in.txt", "good line\nbad \xff byte\n");
  const std::string why = thrown<DataError>([&] { prepare({.input = folder / "in.txt", .output = folder / "out"}); });
  EXPECT_NE(why.find("0xff at offset 14"), std::string::npos) << why;
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(Prepare, SaysWhatTheTextOrTheOptionsLack) {
  const ScratchFolder folder;
  PrepareOptions options{.input = folder / "in.txt", .output = folder / "out", .vocab_size = 300};
  EXPECT_THROW(prepare(options), DataError);  // no such file
  spit(folder / "in.txt", "");
  EXPECT_THROW(prepare(options), DataError);
  spit(folder / "in.txt", "one line only, without a second");
  EXPECT_THROW(prepare(options), DataError);
  spit(folder / "in.txt", numbered_lines());
  options.validation_fraction = 0.0;
  EXPECT_THROW(prepare(options), DataError);
  options.validation_fraction = 0.05;
  options.vocab_size = 100000;
  EXPECT_THROW(prepare(options), DataError);
  EXPECT_FALSE(std::filesystem::exists(folder / "out/dataset.json"));
}

TEST(Inspect, ShowsTheSummaryAndChecksTheTokens) {
  const ScratchFolder folder;
  spit(folder / "in.txt", numbered_lines());
  const DatasetSummary summary = prepare({.input = folder / "in.txt", .output = folder / "out", .vocab_size = 300});
  const Inspection inspection = inspect(folder / "out");
  EXPECT_EQ(inspection.summary.train_tokens, summary.train_tokens);
  EXPECT_EQ(inspection.first_text, numbered_lines().substr(0, inspection.first_text.size()));
  EXPECT_GT(inspection.first_text.size(), 20u);

  std::string bytes = slurp(folder / "out/validation.tokens");
  bytes.back() ^= 1;
  spit(folder / "out/validation.tokens", bytes);
  EXPECT_THROW(inspect(folder / "out"), DataError);
  EXPECT_THROW(inspect(folder.path()), DataError);
}

}  // namespace
}  // namespace orthant::data
