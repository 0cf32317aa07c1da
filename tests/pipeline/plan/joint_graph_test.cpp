// SPDX-License-Identifier: Apache-2.0
// Plans written by hand: those that hang, those whose ranks disagree, and those that are right.
#include <orthant/pipeline/plan/joint_graph.hpp>

#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace orthant::pipeline {
namespace {

using Plan = std::vector<PlannedTask>;
using Problems = std::vector<std::string>;

/// A computation that gathers its input in its body, over the tp axis.
void add_forward(Plan& plan, const std::string& name) {
  const int forward = static_cast<int>(plan.size());
  plan.push_back({.name = name, .stream = "compute"});
  plan.push_back({.name = "gather in " + name, .stream = "tp", .together = "tp", .nested_in = forward});
}

TEST(JointGraph, AcceptsNestedCollectivesInTheirPlaces) {
  Plan plan;
  for (const char* name : {"F m0", "F m1", "I m0", "W m0"}) add_forward(plan, name);
  EXPECT_EQ(check_joint_graph({plan, plan}), Problems{});
  EXPECT_EQ(check_joint_graph({plan}), Problems{});
  EXPECT_EQ(check_joint_graph({}), Problems{});
  EXPECT_EQ(check_joint_graph({{}, {}}), Problems{});
}

TEST(JointGraph, RejectsAGatherOfWThatIsPlannedWhileThoseOfFAreNested) {
  // W's gather has a stream of its own, to run ahead: which comes first on the communicator depends on the timing.
  Plan plan;
  add_forward(plan, "F m1");
  plan.push_back({.name = "gather for W m0", .stream = "ahead", .together = "tp"});
  plan.push_back({.name = "W m0", .stream = "compute", .waits_for = {2}});
  const std::string why =
      "leaves the order of gather in F m1 (on stream tp) and gather for W m0 (on stream ahead) to the timing";
  EXPECT_EQ(check_joint_graph({plan, plan}), (Problems{"tp: rank 0 " + why, "tp: rank 1 " + why}));

  plan[2].waits_for = {0};  // ordered: F has ended, so its gather has
  EXPECT_EQ(check_joint_graph({plan, plan}), Problems{});
  plan[2].waits_for = {};
  plan[2].stream = "tp";  // ordered: one stream
  EXPECT_EQ(check_joint_graph({plan, plan}), Problems{});
}

TEST(JointGraph, RejectsAPlannedGatherThatHoldsUpTheOneNestedBeforeIt) {
  // The planned gather has the place before F's nested one, and waits for F: the body never gets its own.
  Plan plan = {{.name = "F m1", .stream = "compute"},
               {.name = "gather for W m0", .stream = "tp", .waits_for = {0}, .together = "tp"},
               {.name = "gather in F m1", .stream = "tp", .together = "tp", .nested_in = 0}};
  const Problems problems = check_joint_graph({plan, plan});
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_NE(problems[0].find("wait for each other in a circle"), std::string::npos) << problems[0];
  for (const auto& task : plan) EXPECT_NE(problems[0].find(task.name), std::string::npos) << problems[0];
}

TEST(JointGraph, KnowsThatABodyPostsNothingBeforeItBegins) {
  // Rank 0 reduces over dp before F, whose gather rank 1 needs before it comes to that reduction.
  const PlannedTask reduce{.name = "reduce", .stream = "dp", .together = "dp"};
  const PlannedTask nested{.name = "gather in F", .stream = "tp", .together = "tp"};
  Plan a = {reduce, {.name = "F", .stream = "compute", .waits_for = {0}}, nested};
  a[2].nested_in = 1;
  Plan b = {{.name = "F", .stream = "compute"}, nested, reduce};
  b[1].nested_in = 0;
  EXPECT_EQ(check_joint_graph({a, b}), Problems{});
  b[2].waits_for = {0};
  EXPECT_EQ(check_joint_graph({a, b}).size(), 1U);
}

TEST(JointGraph, RejectsReplicasOnDifferentLegalPlans) {
  const auto gather = [](const char* name) {
    return PlannedTask{.name = name, .stream = "dp", .together = "dp of stage 0"};
  };
  const Plan depth_first = {gather("UNSHARD 1"), gather("UNSHARD 2"), gather("UNSHARD 1")};
  const Plan breadth_first = {gather("UNSHARD 1"), gather("UNSHARD 1"), gather("UNSHARD 2")};
  EXPECT_EQ(check_joint_graph({depth_first, depth_first, depth_first}), Problems{});
  EXPECT_EQ(check_joint_graph({depth_first, depth_first, breadth_first}),
            Problems{"dp of stage 0: as operation 1 rank 0 asks for UNSHARD 2 where rank 2 asks for UNSHARD 1"});
  EXPECT_EQ(check_joint_graph({depth_first, {gather("UNSHARD 1"), gather("UNSHARD 2")}}),
            Problems{"dp of stage 0: as operation 2 rank 0 asks for UNSHARD 1 where rank 1 has none left"});
}

TEST(JointGraph, RejectsCommunicatorsInDifferentOrderOnOneStream) {
  const auto on = [](const char* communicator, const char* stream) {
    return PlannedTask{.name = "all_reduce", .stream = stream, .together = communicator};
  };
  const Plan a = {on("tp", "comm"), on("dp", "comm")}, b = {on("dp", "comm"), on("tp", "comm")};
  EXPECT_EQ(check_joint_graph({a, a}), Problems{});
  EXPECT_EQ(check_joint_graph({a, b}).size(), 1U);
  const Plan apart = {on("dp", "comm"), on("tp", "other")};
  EXPECT_EQ(check_joint_graph({apart, apart}), Problems{});
  EXPECT_EQ(check_joint_graph({a, apart}), Problems{});
}

TEST(JointGraph, RejectsMessagesThatCross) {
  // Both send first, on one stream for both directions: neither receives.
  const auto message = [](const char* channel) {
    return PlannedTask{.name = "message", .stream = "p2p", .together = channel};
  };
  const Plan down_first = {message("0>1"), message("1>0")}, up_first = {message("1>0"), message("0>1")};
  EXPECT_EQ(check_joint_graph({down_first, down_first}), Problems{});
  const Problems problems = check_joint_graph({down_first, up_first});
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].substr(0, 37), "these wait for each other in a circle");
}

/// Three ranks and a communicator for each two of them; plans along one global sequence, which is right.
std::vector<Plan> random_plans(std::mt19937& random) {
  const auto draw = [&](int high) { return std::uniform_int_distribution(0, high)(random); };
  std::vector<Plan> plans(3);
  for (int event = 0; event < 30; ++event) {
    const int outsider = draw(2);
    for (int rank = 0; rank < 3; ++rank) {
      Plan& plan = plans[static_cast<std::size_t>(rank)];
      if (draw(2) == 0) {
        plan.push_back({.name = "local", .stream = "compute"});
        if (plan.size() > 1) plan.back().waits_for.push_back(draw(static_cast<int>(plan.size()) - 2));
      }
      if (rank == outsider) continue;
      const std::string communicator = fmt::format("all but {}", outsider);
      std::vector<int> earlier;  // the order on the communicator is not left to the timing
      for (std::size_t i = 0; i < plan.size(); ++i) {
        if (plan[i].together == communicator) earlier.push_back(static_cast<int>(i));
      }
      plan.push_back({.name = fmt::format("event {}", event),
                      .stream = draw(1) == 0 ? "compute" : "comm",
                      .waits_for = earlier,
                      .together = communicator});
    }
  }
  return plans;
}

TEST(JointGraph, AcceptsEverySubsequenceOfOneSequenceAndNoChangeOfACommunicatorsOrder) {
  std::mt19937 random(5);
  int changed = 0;
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<Plan> plans = random_plans(random);
    ASSERT_EQ(check_joint_graph(plans), Problems{}) << "trial " << trial;
    Plan& plan = plans[random() % 3];
    const std::size_t a = random() % plan.size(), b = random() % plan.size();
    if (plan[a].together.empty() || plan[a].together != plan[b].together || a == b) continue;
    std::swap(plan[a].name, plan[b].name);
    EXPECT_NE(check_joint_graph(plans), Problems{});
    ++changed;
  }
  EXPECT_GT(changed, 30);
}

}  // namespace
}  // namespace orthant::pipeline
