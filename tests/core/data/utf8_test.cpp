// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/data/utf8.hpp>

#include <gtest/gtest.h>

namespace orthant::data {
namespace {

TEST(Utf8, AcceptsEveryWellFormedLength) {
  EXPECT_EQ(find_invalid_utf8(""), std::nullopt);
  EXPECT_EQ(find_invalid_utf8(std::string_view("a\0b", 3)), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf \xed\x9f\xbf"), std::nullopt);
}

TEST(Utf8, RefusesIllFormedSequencesAtTheirFirstByte) {
  for (const std::string_view bad :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80", "\xff", "\xe2\x82", "\xc3", "\xe2\x28\xa1"}) {
    EXPECT_EQ(find_invalid_utf8("ok" + std::string(bad)), 2u);
    EXPECT_EQ(find_invalid_utf8("ok" + std::string(bad) + "more"), 2u);
  }
}

}  // namespace
}  // namespace orthant::data
