// SPDX-License-Identifier: Apache-2.0
// The catalog: names, rules and messages; what holds for every hand-written schedule; worked cases of all of them.
#include <orthant/pipeline/generate/catalog.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/pipeline/cost/timing.hpp>
#include <orthant/tests/pipeline/generate/random_costs.hpp>

namespace orthant::pipeline {
namespace {

constexpr const char* kHandWritten[] = {"gpipe", "1f1b",           "interleaved", "breadth_first", "zb_h1",
                                        "zb_h2", "interleaved_zb", "dualpipe_v",  "dualpipe"};

Schedule made(const char* name, int ranks, int microbatches, int chunks = 0) {
  return make_schedule({.name = name, .ranks = ranks, .microbatches = microbatches, .chunks = chunks});
}

/// visit(schedule, chunks) for every legal request with at most `ranks` ranks, `microbatches` micro-batches, 4 chunks.
template <class Visit>
void for_each_legal(int ranks, int microbatches, Visit visit) {
  for (const char* name : kHandWritten) {
    int legal = 0;
    for (int p = 1; p <= ranks; ++p) {
      for (int m = 1; m <= microbatches; ++m) {
        for (const int chunks : {1, 2, 4}) {
          const ScheduleRequest request{.name = name, .ranks = p, .microbatches = m, .chunks = chunks};
          if (!broken_rule(request).empty()) continue;
          SCOPED_TRACE(testing::Message() << name << " p" << p << " m" << m << " v" << chunks);
          visit(make_schedule(request), chunks);
          ++legal;
        }
      }
    }
    EXPECT_GT(legal, 10) << name;
  }
}

// pipelines.md, section 7a; peaks of one value hold for every rank.
TEST(Catalog, MatchesWorkedCases) {
  struct Case {
    int id;
    const char* schedule;
    int ranks, microbatches, chunks;
    StageCosts costs;
    double message, overlapped;
    double makespan, idle_of_first;
    std::vector<double> peaks;
  };
  const StageCosts unit, ten{10, 10, 10}, small{18522, 18086, 9337}, large{29718, 29444, 19927};
  const std::vector<double> down8{8, 7, 6, 5, 4, 3, 2, 1}, down4{4, 3, 2, 1};
  const Case cases[] = {
      {1, "gpipe", 2, 4, 1, unit, 0, 0, 15, 3, {4}},
      {2, "1f1b", 4, 8, 1, unit, 0, 0, 33, 9, down4},
      {3, "zb_h1", 4, 8, 1, unit, 0, 0, 27, 3, down4},
      {5, "1f1b", 8, 24, 1, unit, 0, 0, 93, 21, down8},
      {8, "1f1b", 4, 12, 1, ten, 1, 0, 472, 112, down4},
      {9, "zb_h1", 4, 12, 1, ten, 1, 0, 402, 42, down4},
      {11, "1f1b", 8, 24, 1, small, 601, 0, 1456749, 354069, down8},
      {14, "1f1b", 8, 24, 1, large, 527, 0, 2480217, 582081, down8},
      {14, "zb_h1", 8, 24, 1, large, 527, 0, 2187537, 289401, down8},
      {17, "interleaved", 2, 4, 2, unit, 0, 0, 27, 3, {5, 3}},
      {18, "interleaved", 4, 8, 2, unit, 0, 0, 57, 9, {11, 9, 7, 5}},
      {21, "breadth_first", 4, 8, 2, unit, 0, 0, 57, 9, {16}},
      {31, "dualpipe_v", 4, 10, 2, unit, 0, 3, 66, 6, {9}},
      {32, "dualpipe_v", 4, 10, 2, unit, 0, 2, 52, 1, {9}},
      {34, "dualpipe", 8, 20, 2, unit, 0, 3, 66, 6, {9}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << "id " << c.id << " " << c.schedule);
    Costs costs = uniform_costs(c.costs, c.message);
    costs.overlapped = c.overlapped;
    const Timing timing = time_schedule(made(c.schedule, c.ranks, c.microbatches, c.chunks), costs);
    EXPECT_EQ(timing.makespan, c.makespan);
    EXPECT_EQ(timing.span, c.makespan);  // the first rank begins first and ends last
    EXPECT_EQ(timing.idle.front(), c.idle_of_first);
    std::vector<double> peaks = c.peaks;
    peaks.resize(static_cast<std::size_t>(c.ranks), c.peaks.back());
    EXPECT_EQ(timing.peak, peaks);
  }
}

// pipelines.md, section 1.5: measured costs in us of four models, and the published rates of idle time.
TEST(Catalog, MatchesPublishedBubbleRates) {
  struct Row {
    int ranks, microbatches;
    StageCosts costs;
    double message;
    double one_f_one_b, h1, h2;
  };
  const Row rows[] = {
      {8, 24, {18522, 18086, 9337}, 601, .2431, .1585, .1083},
      {8, 32, {18513, 18086, 9331}, 626, .1985, .1242, .0837},
      {8, 64, {18546, 18097, 9321}, 762, .1240, .0674, .0444},
      {8, 24, {29718, 29444, 19927}, 527, .2347, .1323, .0698},
      {8, 32, {29802, 29428, 19530}, 577, .1898, .1045, .0559},
      {8, 64, {29935, 29621, 19388}, 535, .1091, .0554, .0294},
      {16, 48, {11347, 11248, 8132}, 377, .2552, .1397, .0672},
      {16, 64, {11307, 11254, 8101}, 379, .2082, .1088, .0516},
      {16, 128, {11325, 11308, 8109}, 378, .1251, .0576, .0266},
      {32, 96, {10419, 10207, 7715}, 408, .2646, .1421, .0641},
      {32, 128, {10408, 10204, 7703}, 408, .2168, .1106, .0490},
      {32, 256, {10402, 10248, 7698}, 460, .1352, .0594, .0257},
  };
  const auto rounded = [](double rate) { return std::round(rate * 1e4) / 1e4; };
  for (const Row& row : rows) {
    SCOPED_TRACE(testing::Message() << "p" << row.ranks << " m" << row.microbatches);
    const auto time = [&](const char* name) {
      return time_schedule(made(name, row.ranks, row.microbatches), uniform_costs(row.costs, row.message));
    };
    const Timing one_f_one_b = time("1f1b"), h1 = time("zb_h1"), h2 = time("zb_h2");
    EXPECT_EQ(rounded(one_f_one_b.bubble() / one_f_one_b.makespan), row.one_f_one_b);
    EXPECT_EQ(rounded(h1.bubble() / h1.makespan), row.h1);
    EXPECT_EQ(rounded(h2.bubble_span() / h2.span), row.h2);
  }
}

/// Where each operation of one stage stands in its rank's list: F, then I (or B), then W (or B), per micro-batch.
struct Places {
  std::map<int, std::size_t> forward, input, weight;
};

std::map<int, Places> places_on(const Schedule& schedule, int rank) {
  std::map<int, Places> stages;
  const auto& ops = schedule.ranks[static_cast<std::size_t>(rank)];
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Op& op = ops[i];
    EXPECT_TRUE(is_compute(op.kind)) << to_text(op);
    EXPECT_EQ(schedule.rank_of(op.stage), rank) << to_text(op);
    Places& places = stages[op.stage.value];
    const int m = op.microbatch.value;
    const auto once = [&](auto& place) { EXPECT_TRUE(place.try_emplace(m, i).second) << to_text(op) << " again"; };
    if (op.kind == OpKind::forward) once(places.forward);
    if (makes_input_gradient(op.kind)) once(places.input);
    if (makes_weight_gradient(op.kind)) once(places.weight);
    if (op.joins_next) {
      EXPECT_EQ(op.kind, OpKind::forward) << to_text(op);
      EXPECT_TRUE(i + 1 < ops.size() && ops[i + 1].kind == OpKind::backward) << to_text(op);
    }
  }
  return stages;
}

TEST(Catalog, EveryScheduleDoesEachOperationOnceAndCanRun) {
  for_each_legal(8, 24, [](const Schedule& schedule, int) {
    for (int rank = 0; rank < static_cast<int>(schedule.ranks.size()); ++rank) {
      const auto stages = places_on(schedule, rank);
      EXPECT_EQ(stages.size(), schedule.stages_of(rank).size());
      for (const auto& [stage, places] : stages) {
        const auto [first, end] = schedule.microbatches_of(StageId{stage});
        for (const auto* place : {&places.forward, &places.input, &places.weight}) {
          EXPECT_EQ(place->size(), static_cast<std::size_t>(end - first)) << "stage " << stage;
          EXPECT_EQ(place->begin()->first, first);
          EXPECT_EQ(place->rbegin()->first, end - 1);
        }
        for (int m = first; m < end; ++m) {
          EXPECT_LT(places.forward.at(m), places.input.at(m)) << "stage " << stage << " m" << m;
          EXPECT_LE(places.input.at(m), places.weight.at(m)) << "stage " << stage << " m" << m;
        }
      }
    }
    EXPECT_NO_THROW(time_schedule(schedule, {}));
  });
}

TEST(Catalog, EveryStageTakesItsMicrobatchesInOrder) {
  for_each_legal(8, 24, [](const Schedule& schedule, int) {
    for (int rank = 0; rank < static_cast<int>(schedule.ranks.size()); ++rank) {
      for (const auto& [stage, places] : places_on(schedule, rank)) {
        for (const auto* place : {&places.forward, &places.input, &places.weight}) {
          EXPECT_TRUE(std::ranges::is_sorted(*place, {}, [](const auto& at) { return at.second; }))
              << "stage " << stage;
        }
      }
    }
  });
}

// pipelines.md, section 7c (1), costs differing by stage; (6).
TEST(Catalog, EveryRankIsBusyForTheSumOfItsWork) {
  std::mt19937 random(7);
  for_each_legal(6, 15, [&](const Schedule& schedule, int) {
    Costs costs{.stages = {}, .message = 3};
    for (int stage = 0; stage < schedule.depth(); ++stage) costs.stages.push_back(random_stage(random));
    const Timing timing = time_schedule(schedule, costs);
    for (int rank = 0; rank < static_cast<int>(schedule.ranks.size()); ++rank) {
      double work = 0;
      for (const StageId stage : schedule.stages_of(rank)) {
        work += schedule.microbatches / schedule.copies * sum(costs.of(schedule, stage));
      }
      EXPECT_EQ(timing.makespan - timing.idle[static_cast<std::size_t>(rank)], work);
    }
  });
}

TEST(Catalog, OneRankHasNoBubble) {
  std::mt19937 random(8);
  for (const char* name : kHandWritten) {
    if (std::string_view(name) == "dualpipe") continue;  // wants two
    for (int m = 2; m <= 12; ++m) {
      const Timing timing = time_schedule(made(name, 1, m), uniform_costs(random_stage(random), 5));
      EXPECT_EQ(timing.bubble(), 0) << name << " m" << m;
    }
  }
}

TEST(Catalog, TextListsOperationsInOrder) {
  EXPECT_EQ(to_text(made("zb_h1", 2, 3)),
            "rank 0: F0 F1 I0 W0 F2 I1 W1 I2 W2\n"
            "rank 1: F0 I0 F1 I1 W0 F2 I2 W1 W2\n");
  EXPECT_EQ(to_text(made("zb_h2", 2, 3)),
            "rank 0: F0 F1 F2 I0 W0 I1 W1 I2 W2\n"
            "rank 1: F0 I0 F1 I1 F2 I2 W0 W1 W2\n");
  EXPECT_EQ(to_text(made("interleaved", 2, 2)),
            "rank 0: F0.0 F0.1 F2.0 F2.1 B2.0 B2.1 B0.0 B0.1\n"
            "rank 1: F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 B1.0 B1.1\n");
  EXPECT_EQ(to_text(made("dualpipe_v", 1, 3)),
            "rank 0: F0.0 F1.0 F0.1 B1.0 (F1.1 & B0.0) (F0.2 & B1.1) (F1.2 & B0.1) B1.2 I0.2 W0.2\n");
}

TEST(Catalog, NamesAreTheOnesThatCanBeMade) {
  for (const std::string_view name : schedule_names()) {
    EXPECT_EQ(make_schedule({.name = std::string(name), .ranks = 2, .microbatches = 4}).name, name);
    EXPECT_FALSE(summary_of(name).empty()) << name;
  }
  for (const char* name : kHandWritten) EXPECT_NE(std::ranges::find(schedule_names(), name), schedule_names().end());
  EXPECT_TRUE(summary_of("forward_only").empty());
  EXPECT_THROW(made("forward_only", 2, 3), ConfigError);
}

TEST(Catalog, RuleSaysWhatIsFoundAndWhatIsAllowed) {
  const auto fault = [](const char* name, int ranks, int microbatches, int chunks) {
    return broken_rule({.name = name, .ranks = ranks, .microbatches = microbatches, .chunks = chunks});
  };
  EXPECT_TRUE(
      fault("1f1", 2, 2, 0).starts_with("schedule = \"1f1\" is not known; use one of gpipe, 1f1b, interleaved, "));
  EXPECT_EQ(fault("gpipe", 0, 1, 0),
            "schedule gpipe with 0 ranks, 1 micro-batches and 1 chunks; each must be at least 1");
  EXPECT_EQ(fault("zb_h1", 2, 2, 2), "schedule zb_h1 puts 1 stage on a rank, not 2; use chunks = 1");
  EXPECT_EQ(fault("dualpipe_v", 2, 4, 1), "schedule dualpipe_v puts 2 stages on a rank, not 1; use chunks = 2");
  EXPECT_EQ(
      fault("interleaved", 4, 13, 2),
      "schedule interleaved over 4 ranks takes 13 micro-batches in 3 rounds, which must be equally long; use 12 or "
      "15 micro-batches");
  EXPECT_EQ(fault("dualpipe_v", 4, 7, 2),
            "schedule dualpipe_v over 4 ranks has 7 micro-batches but wants two a rank; use at least 8");
  EXPECT_EQ(
      fault("dualpipe", 3, 8, 2),
      "schedule dualpipe runs the pipeline from both ends and wants an even number of ranks, not 3; use dualpipe_v");
  EXPECT_EQ(fault("dualpipe", 4, 9, 2),
            "schedule dualpipe splits the micro-batches over two directions; 9 is odd, use 8 or 10");
  EXPECT_THROW(made("interleaved", 4, 13), ConfigError);
}

TEST(Catalog, RuleWantsCostsOfOneStageOrOfEach) {
  const auto fault = [](const char* name, std::size_t costs) {
    return broken_rule(
        {.name = name, .ranks = 4, .microbatches = 8, .costs = {.stages = std::vector<StageCosts>(costs)}});
  };
  EXPECT_EQ(fault("1f1b", 4), "");
  EXPECT_EQ(fault("1f1b", 3),
            "schedule 1f1b has 4 stages but costs of 3 are given; give one set, or one for each stage");
  EXPECT_EQ(fault("dualpipe_v", 8), "");
  EXPECT_EQ(fault("dualpipe_v", 4),
            "schedule dualpipe_v has 8 stages but costs of 4 are given; give one set, or one for each stage");
  EXPECT_EQ(fault("dualpipe", 4), "");  // of one copy
  EXPECT_EQ(fault("dualpipe", 8),
            "schedule dualpipe has 4 stages but costs of 8 are given; give one set, or one for each stage");
}

// Narayanan et al.'s rule: rounds of m / max(1, m / p) micro-batches; below 2 p micro-batches one round takes any
// number.
TEST(Catalog, RuleOfInterleavedAllowsEqualRoundsOnly) {
  const auto legal = [](const char* name, int ranks, int microbatches) {
    return broken_rule({.name = name, .ranks = ranks, .microbatches = microbatches}).empty();
  };
  for (const char* name : {"interleaved", "interleaved_zb"}) {
    std::vector<int> found;
    for (int m = 1; m <= 20; ++m) {
      if (legal(name, 4, m)) found.push_back(m);
    }
    EXPECT_EQ(found, (std::vector{1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16, 20})) << name;
  }
}

}  // namespace
}  // namespace orthant::pipeline
