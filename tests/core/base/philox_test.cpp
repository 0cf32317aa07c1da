// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <orthant/core/base/philox.hpp>

namespace orthant {
namespace {

// Source: Random123, tests/kat_vectors, the lines "philox4x32 10".
TEST(Philox, GivesThePublishedVectors) {
  EXPECT_EQ(philox(PhiloxCounter{0, 0, 0, 0}, PhiloxKey{0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(PhiloxCounter{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, PhiloxKey{0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(PhiloxCounter{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, PhiloxKey{0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, SixtyFourBitFormUsesEveryBitOfItsArguments) {
  static_assert(philox(0x85a308d3'243f6a88u, 0x03707344'13198a2eu, 0x299f31d0'a4093822u) ==
                PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

}  // namespace
}  // namespace orthant
