// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/data/tokenizer.hpp>

#include <random>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/tests/core/base/scratch_folder.hpp>

namespace orthant::data {
namespace {

using orthant::testing::ScratchFolder;
using orthant::testing::slurp;
using orthant::testing::spit;
using orthant::testing::thrown;

std::string small_text() {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "the quick brown fox jumps over the lazy dog " + std::to_string(i * 37) + "\n";
  return text;
}

TEST(Tokenizer, GivesBackEveryTextUnchanged) {
  const ScratchFolder folder;
  train_tokenizer(small_text(), 320, folder / "m");
  const Tokenizer tokenizer(folder / "m");
  EXPECT_EQ(tokenizer.vocab_size(), 320);
  for (const std::string text :
       {"", " ", "the fox", "  two  spaces ", "tab\tand\r\nline\n\n", "\n", "caf\u00e9 \u20ac \U0001f600",
        "ZQX <s> </s> <unk> <0x41>", "\u00a0\ufeff e\u0301 \uff21", "0123456789"}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(Tokenizer, CutsBehindNewlinesWithoutChangingTokens) {
  const ScratchFolder folder;
  train_tokenizer(small_text(), 320, folder / "m");
  const Tokenizer tokenizer(folder / "m");
  auto joined = tokenizer.encode("the quick fox\n");
  for (const auto token : tokenizer.encode(" the lazy dog\n")) joined.push_back(token);
  EXPECT_EQ(joined, tokenizer.encode("the quick fox\n the lazy dog\n"));
}

TEST(Tokenizer, KeepsDigitsApart) {
  const ScratchFolder folder;
  train_tokenizer(small_text(), 320, folder / "m");
  EXPECT_EQ(Tokenizer(folder / "m").encode("1234").size(), 4u);
}

TEST(TrainTokenizer, IsDeterministicAndQuiet) {
  const ScratchFolder folder;
  ::testing::internal::CaptureStderr();
  ::testing::internal::CaptureStdout();
  train_tokenizer(small_text(), 320, folder / "a");
  train_tokenizer(small_text(), 320, folder / "b");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(slurp(folder / "a"), slurp(folder / "b"));
}

TEST(TrainTokenizer, LearnsFromLinesOfAnyLength) {
  const ScratchFolder folder;
  std::string text = small_text();
  for (char& c : text) c = c == '\n' ? ' ' : c;
  train_tokenizer(text + text + text, 320, folder / "m");          // one line of 7 kB
  EXPECT_LT(Tokenizer(folder / "m").encode(" quick").size(), 6u);  // fewer than its letters
}

TEST(TrainTokenizer, SaysWhatDoesNotSuit) {
  const ScratchFolder folder;
  const auto too_many = [&] { train_tokenizer("ab ab\n", 5000, folder / "m"); };
  EXPECT_NE(thrown<DataError>(too_many).find("vocab_size = 5000"), std::string::npos);
  EXPECT_THROW(train_tokenizer(small_text(), 100, folder / "m"), DataError);
  EXPECT_THROW(train_tokenizer("", 320, folder / "m"), DataError);
  EXPECT_THROW(train_tokenizer("\n\n", 320, folder / "m"), DataError);
  EXPECT_THROW(train_tokenizer(small_text(), 320, "/nonexistent/m"), DataError);
  EXPECT_FALSE(std::filesystem::exists(folder / "m"));
}

TEST(Tokenizer, RefusesWhatIsNoModelAndForeignIds) {
  const ScratchFolder folder;
  spit(folder / "junk", "not a model at all");
  spit(folder / "empty", "");
  EXPECT_THROW(Tokenizer(folder / "junk"), DataError);
  EXPECT_THROW(Tokenizer(folder / "empty"), DataError);
  EXPECT_THROW(Tokenizer(folder / "absent"), DataError);
  train_tokenizer(small_text(), 320, folder / "m");
  EXPECT_THROW(Tokenizer(folder / "m").decode({320}), DataError);
  EXPECT_THROW(Tokenizer(folder / "m").decode({-1}), DataError);
}

/// What of a damaged model is still one gives ids of its vocabulary; the rest is refused.
TEST(Tokenizer, OfADamagedModelIsRefusedOrStaysInItsVocabulary) {
  const ScratchFolder folder;
  train_tokenizer(small_text(), 320, folder / "m");
  const std::string sound = slurp(folder / "m");
  std::mt19937 random(1);
  int refused = 0;
  constexpr int kDamages = 400;
  for (int i = 0; i < kDamages; ++i) {
    std::string bytes = sound;
    const auto at = random() % bytes.size();
    if (i % 4 == 0) {
      bytes.resize(at);
    } else {
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
    }
    spit(folder / "bad", bytes);
    try {
      const Tokenizer tokenizer(folder / "bad");
      for (const auto token : tokenizer.encode("the lazy dog \u20ac 12")) {
        ASSERT_GE(token, 0);
        ASSERT_LT(token, tokenizer.vocab_size()) << "damage " << i;
      }
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, kDamages / 8);
}

}  // namespace
}  // namespace orthant::data
