// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/data/token_file.hpp>

#include <cstring>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/tests/core/base/scratch_folder.hpp>

namespace orthant::data {
namespace {

using orthant::testing::ScratchFolder;
using orthant::testing::slurp;
using orthant::testing::spit;
using orthant::testing::thrown;

void write_tokens(const std::filesystem::path& path, std::int64_t vocab_size, const std::vector<std::int32_t>& tokens) {
  TokenFileWriter writer(path, vocab_size);
  const std::span<const std::int32_t> all(tokens);
  writer.append(all.first(tokens.size() / 2));
  writer.append(all.subspan(tokens.size() / 2));
  writer.finish();
}

TEST(TokenFile, GivesBackTokensOfBothWidths) {
  const ScratchFolder folder;
  for (const std::int32_t vocab_size : {10, 65536, 65537, 2147483647}) {
    const std::vector<std::int32_t> tokens{0, vocab_size - 1, 3, 9, 1};
    write_tokens(folder / "t", vocab_size, tokens);
    const TokenFile file(folder / "t");
    ASSERT_EQ(file.size(), 5);
    EXPECT_EQ(file.vocab_size(), vocab_size);
    EXPECT_EQ(std::filesystem::file_size(folder / "t"), 64u + 5u * (vocab_size <= 65536 ? 2u : 4u));
    std::vector<std::int64_t> read(4);
    file.read(1, read);
    EXPECT_EQ(read, std::vector<std::int64_t>(tokens.begin() + 1, tokens.end()));
    EXPECT_EQ(file.token(1), vocab_size - 1);
    EXPECT_NO_THROW(file.verify());
  }
}

TEST(TokenFile, FingerprintFollowsTheTokens) {
  const ScratchFolder folder;
  write_tokens(folder / "a", 10, {1, 2, 3});
  write_tokens(folder / "b", 10, {1, 2, 3});
  write_tokens(folder / "c", 10, {1, 2, 4});
  EXPECT_EQ(TokenFile(folder / "a").fingerprint(), TokenFile(folder / "b").fingerprint());
  EXPECT_NE(TokenFile(folder / "a").fingerprint(), TokenFile(folder / "c").fingerprint());
}

TEST(TokenFile, HasTheDocumentedLayout) {
  const ScratchFolder folder;
  write_tokens(folder / "t", 300, {1, 258});
  const std::string bytes = slurp(folder / "t");
  EXPECT_EQ(bytes.substr(0, 32), std::string("ORTHTOKS\1\0\0\0\2\0\0\0\x2c\1\0\0\0\0\0\0\2\0\0\0\0\0\0\0", 32));
  EXPECT_EQ(bytes.substr(40, 24), std::string(24, '\0'));
  EXPECT_EQ(bytes.substr(64), std::string("\1\0\2\1", 4));
}

TEST(TokenFile, ChecksPositions) {
  const ScratchFolder folder;
  write_tokens(folder / "t", 10, {1, 2, 3});
  const TokenFile file(folder / "t");
  std::vector<std::int64_t> out(2);
  EXPECT_THROW(file.token(3), DataError);
  EXPECT_THROW(file.token(-1), DataError);
  EXPECT_THROW(file.read(2, out), DataError);
  EXPECT_THROW(file.read(INT64_MAX, out), DataError);
  EXPECT_NO_THROW(file.read(3, {}));
}

TEST(TokenFile, DoesNotReadOnWhenItsFileWasChanged) {
  const ScratchFolder folder;
  const auto tokens = [&](const char* name) { return folder / name; };
  write_tokens(tokens("kept"), 10, {1, 2, 3});
  write_tokens(tokens("cut"), 10, {1, 2, 3});
  const TokenFile kept(tokens("kept")), cut(tokens("cut"));
  write_tokens(tokens("kept"), 10, {4, 5, 6});  // another file in its place
  EXPECT_EQ(kept.token(0), 1);
  std::filesystem::remove(tokens("kept"));
  EXPECT_EQ(kept.token(2), 3);
  std::filesystem::resize_file(tokens("cut"), 66);  // its last page is there still, and full of zeros
  const std::string why = thrown<DataError>([&] { cut.token(1); });
  EXPECT_NE(why.find("was changed"), std::string::npos) << why;
}

TEST(TokenFile, RefusesDamagedHeaders) {
  const ScratchFolder folder;
  write_tokens(folder / "good", 10, {1, 2, 3});
  const std::string good = slurp(folder / "good");
  const auto put = [](std::string& bytes, std::size_t at, std::uint64_t value) { std::memcpy(&bytes[at], &value, 8); };
  const std::vector<std::pair<const char*, std::function<void(std::string&)>>> damages{
      {"empty", [](std::string& b) { b.clear(); }},
      {"half a header", [](std::string& b) { b.resize(63); }},
      {"magic", [](std::string& b) { b[0] = 'X'; }},
      {"version", [](std::string& b) { b[8] = 2; }},
      {"width", [](std::string& b) { b[12] = 4; }},
      {"width 0", [](std::string& b) { b[12] = 0; }},
      {"no vocabulary", [&](std::string& b) { put(b, 16, 0); }},
      {"huge vocabulary", [&](std::string& b) { put(b, 16, UINT64_MAX); }},
      {"count", [&](std::string& b) { put(b, 24, 4); }},
      {"count that overflows", [&](std::string& b) { put(b, 24, (std::uint64_t{1} << 63) + 3); }},
      {"reserved", [](std::string& b) { b[63] = 1; }},
      {"cut off", [](std::string& b) { b.pop_back(); }},
      {"too long", [](std::string& b) { b += "ab"; }}};
  for (const auto& [name, damage] : damages) {
    std::string bytes = good;
    damage(bytes);
    spit(folder / "bad", bytes);
    const std::string why = thrown<DataError>([&] { TokenFile file(folder / "bad"); });
    EXPECT_NE(why.find((folder / "bad").string()), std::string::npos) << name;
  }
}

TEST(TokenFile, NamesFileAndPositionOfAForeignToken) {
  const ScratchFolder folder;
  write_tokens(folder / "t", 10, {1, 2, 3});
  std::string bytes = slurp(folder / "t");
  bytes[66] = 10;
  spit(folder / "t", bytes);
  const TokenFile file(folder / "t");
  EXPECT_EQ(file.token(0), 1);
  const std::string why = thrown<DataError>([&] { file.token(1); });
  EXPECT_NE(why.find("token 10 at position 1"), std::string::npos) << why;
  EXPECT_THROW(file.verify(), DataError);
}

TEST(TokenFileWriter, RefusesForeignTokensAndLeavesNoFile) {
  const ScratchFolder folder;
  EXPECT_THROW(write_tokens(folder / "t", 10, {1, 10}), DataError);
  EXPECT_THROW(write_tokens(folder / "t", 10, {-1, 1}), DataError);
  EXPECT_THROW(write_tokens(folder / "t", 0, {}), DataError);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace orthant::data
