// SPDX-License-Identifier: Apache-2.0
// What can be checked of a picture as data: it is well-formed, complete and small.
// tests/launch/simulate/simulate_test.py parses one, too.
#include <orthant/pipeline/cost/svg.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <orthant/pipeline/generate/catalog.hpp>
#include <orthant/pipeline/plan/lower.hpp>

namespace orthant::pipeline {
namespace {

Panel panel(const std::string& name, int p, int m, const Costs& costs, const std::string& title) {
  const Schedule plan = lower(make_schedule({.name = name, .ranks = p, .microbatches = m}), 4);
  return panel_of(title, plan, simulate(plan, costs));
}

std::size_t count(const std::string& text, const std::string& word) {
  std::size_t found = 0;
  for (auto at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++found;
  return found;
}

/// Whether every tag is closed in turn.
bool is_balanced(const std::string& xml) {
  std::vector<std::string> open;
  for (auto at = xml.find('<'); at != xml.npos; at = xml.find('<', at + 1)) {
    const auto end = xml.find('>', at);
    if (end == xml.npos) return false;
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (tag.starts_with('/')) {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  return open.empty();
}

TEST(Svg, HasABoxWithATooltipForEachOperation) {
  const std::string picture = svg({panel("zb_h1", 4, 6, {}, "zb_h1")});
  EXPECT_TRUE(is_balanced(picture));
  EXPECT_EQ(count(picture, "<rect class=\"box F0\""), 24u);
  EXPECT_EQ(count(picture, "<rect class=\"box I0\""), 24u);
  EXPECT_EQ(count(picture, "<rect class=\"box W0\""), 24u);
  EXPECT_EQ(count(picture, "</title></rect>"), 72u);
  EXPECT_NE(picture.find("<title>I5: 17 to 18</title>"), std::string::npos);
  EXPECT_NE(picture.find("zb_h1: makespan 21, bubble 3 (14.29 %)"), std::string::npos);
}

TEST(Svg, ShadesChunks) {
  const std::string picture = svg({panel("interleaved", 2, 4, {}, "interleaved")});
  EXPECT_EQ(count(picture, "<rect class=\"box F0\""), 8u);
  EXPECT_EQ(count(picture, "<rect class=\"box F1\""), 8u);
  EXPECT_NE(picture.find("shades"), std::string::npos);
}

TEST(Svg, PutsPanelsOnOneScaleFromTheirFirstBegin) {
  const Panel predicted = panel("1f1b", 2, 2, {}, "predicted");
  Panel measured = panel("1f1b", 2, 2, uniform_costs({2, 2, 2}), "measured");
  const std::string at_zero = svg({predicted, measured}, {.time_unit = "ms"});
  for (auto& ops : measured.ops) {
    for (Interval& at : ops) at = {at.begin + 1000, at.end + 1000};
  }
  for (MessageInterval& message : measured.messages) message.at = {message.at.begin + 1000, message.at.end + 1000};
  EXPECT_EQ(svg({predicted, measured}, {.time_unit = "ms"}), at_zero);
  EXPECT_NE(at_zero.find("predicted: makespan 9 ms"), std::string::npos);
  EXPECT_NE(at_zero.find("measured: makespan 18 ms"), std::string::npos);
  EXPECT_EQ(count(at_zero, ">rank 0</text>"), 2u);
}

TEST(Svg, EscapesTitles) {
  const std::string picture = svg({panel("1f1b", 1, 1, {}, "a <b> & \"c\"\n")});
  EXPECT_TRUE(is_balanced(picture));
  EXPECT_NE(picture.find("a &lt;b&gt; &amp; \"c\": makespan"), std::string::npos);
}

TEST(Svg, IsSmall) {
  EXPECT_LT(svg({panel("zb_h1", 8, 24, uniform_costs({18522, 18086, 9337}, 601), "zb_h1")}).size(), 150'000u);
  EXPECT_LT(svg({panel("interleaved_zb", 8, 24, {}, "interleaved_zb")}).size(), 300'000u);
}

TEST(Svg, OfNothingIsStillAPicture) {
  EXPECT_TRUE(is_balanced(svg({})));
  EXPECT_TRUE(is_balanced(svg({panel("1f1b", 2, 2, uniform_costs({0, 0, 0}), "no time")})));
}

}  // namespace
}  // namespace orthant::pipeline
