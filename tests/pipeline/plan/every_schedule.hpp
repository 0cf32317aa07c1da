// SPDX-License-Identifier: Apache-2.0
// Every schedule of the catalog, at every size that its rule allows.
#pragma once

#include <string>
#include <string_view>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <orthant/pipeline/generate/catalog.hpp>

namespace orthant::pipeline::tests {

/// Names, for TEST_P: one test a schedule.
inline auto schedule_names_of_tests() { return testing::ValuesIn(schedule_names().begin(), schedule_names().end()); }
inline std::string test_name(const testing::TestParamInfo<std::string_view>& test) {
  return "of_" + std::string(test.param);
}

/// Calls use(request) for chunks 1, 2 and 4 where the rule allows.
template <class Use>
void for_chunks(std::string_view name, int ranks, int microbatches, Use use) {
  for (const int chunks : {1, 2, 4}) {
    const ScheduleRequest request{
        .name = std::string(name), .ranks = ranks, .microbatches = microbatches, .chunks = chunks};
    if (broken_rule(request).empty()) use(request);
  }
}

inline std::string text_of(const ScheduleRequest& request) {
  return fmt::format("{} p{} m{} v{}", request.name, request.ranks, request.microbatches, request.chunks);
}

}  // namespace orthant::pipeline::tests
