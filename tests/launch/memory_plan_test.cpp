// SPDX-License-Identifier: Apache-2.0
// The memory plan as a pure function: every schedule's walk ends with nothing left, checkpointing keeps less, "auto"
// takes the fewest blocks, and what does not fit is told with its largest line. What runs measure is in memory_test.py.
#include <orthant/launch/memory_plan.hpp>

#include <algorithm>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/error.hpp>
#include <orthant/launch/byte_size.hpp>
#include <orthant/launch/memory_report.hpp>
#include <orthant/pipeline/generate/catalog.hpp>
#include <orthant/tests/launch/first_rank.hpp>

namespace orthant::launch {
namespace {

RunConfig config(const char* schedule, int pp, int microbatches) {
  RunConfig run;
  run.model = {.layers = 8, .hidden = 16, .heads = 4, .kv_heads = 4, .head_dim = 4, .ffn = 24, .vocab = 61};
  run.mesh.pp = pp;
  run.train.global_batch = microbatches;
  run.train.seq_len = 32;
  run.pipeline.schedule = schedule;
  run.pipeline.post_validation = "off";
  return run;
}

RunConfig checkpointed(RunConfig run, const char* mode, std::vector<std::string> ops = {}) {
  run.train.checkpoint_activations = mode;
  run.train.checkpoint_ops = std::move(ops);
  return run;
}

std::int64_t activations(const RunConfig& run) {
  std::int64_t most = 0;
  for (const auto& rank : plan_memory(run, plan_pipeline(run)).ranks) most = std::max(most, rank.activations);
  return most;
}

TEST(ByteSize, IsANumberWithAUnit) {
  EXPECT_EQ(parse_byte_size("2GiB"), std::int64_t{2} << 30);
  EXPECT_EQ(parse_byte_size("1.5 KiB"), 1536);
  EXPECT_EQ(parse_byte_size("800MB"), 800'000'000);
  for (const char* wrong : {"", "2", "GiB", "2GiBs", "-1GiB", "0B", "2 gib", "nanMiB", "1e30TiB"})
    EXPECT_EQ(parse_byte_size(wrong), std::nullopt) << wrong;
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(std::int64_t{3} << 40), "3.0 TiB");
}

TEST(MemoryPlan, EveryScheduleGivesBackAllItTakesUnderEveryCheckpointing) {
  for (const auto& name : pipeline::schedule_names()) {
    for (const int pp : {1, 2, 4}) {
      auto run = config(std::string(name).c_str(), pp, 8);
      try {
        plan_pipeline(run);
      } catch (const ConfigError&) {
        continue;  // the schedule has a rule against it
      }
      SCOPED_TRACE(fmt::format("{} pp{}", name, pp));
      const auto all = activations(run);
      const auto full = activations(checkpointed(run, "full"));
      const auto attention = activations(checkpointed(run, "selected", {"attention"}));
      const auto both = activations(checkpointed(run, "selected", {"attention", "mlp"}));
      // Where the peak is the head's, or what waits for W, it stays.
      EXPECT_LE(full, both);
      EXPECT_LE(both, attention);
      EXPECT_LE(attention, all);
      if (name != "1f1b" || pp == 1) continue;
      EXPECT_LT(full, both);
      EXPECT_LT(both, attention);
      EXPECT_LT(attention, all);
    }
  }
}

TEST(MemoryPlan, AWarmUpHoldsAsManyMicrobatchesAsItsPlaceSays) {
  const auto run = config("1f1b", 4, 8);
  const auto memory = plan_memory(run, plan_pipeline(run));
  const auto one = plan_memory(config("1f1b", 4, 1), plan_pipeline(config("1f1b", 4, 1)));
  for (int pp = 0; pp < 3; ++pp) {
    EXPECT_GT(memory.at(pp, 0).activations, (4 - pp - 1) * one.at(pp, 0).activations);
    EXPECT_LT(memory.at(pp, 0).activations, (4 - pp + 1) * one.at(pp, 0).activations);
  }
}

TEST(MemoryPlan, AutoTakesTheFewestBlocksThatFitOnEachRank) {
  auto run = checkpointed(config("1f1b", 2, 4), "auto");
  const auto total = [&](int blocks, int pp) {
    auto plan = plan_pipeline(run);
    for (auto& checkpoint : plan.checkpoints) checkpoint.blocks = blocks;
    return plan_memory(run, plan).at(pp, 0).total();
  };
  for (int wanted = 0; wanted <= 4; ++wanted) {
    auto plan = plan_pipeline(run);
    choose_checkpoints(run, {.bytes = total(wanted, 0)}, plan);
    EXPECT_EQ(plan.checkpoints[0].blocks, wanted);
    for (const int pp : {0, 1}) {
      const int blocks = plan.checkpoints[static_cast<std::size_t>(pp)].blocks;
      EXPECT_LE(total(blocks, pp), total(wanted, 0));
      EXPECT_TRUE(blocks == 0 || total(blocks - 1, pp) > total(wanted, 0));
    }
  }
  auto plan = plan_pipeline(run);
  choose_checkpoints(run, {.bytes = 1}, plan);
  EXPECT_EQ(plan.checkpoints[0].blocks, 4) << "nothing fits: as little as can be";
}

TEST(MemoryPlan, ARunThatDoesNotFitIsToldWhatDominates) {
  const auto run = config("1f1b", 2, 4);
  const auto memory = plan_memory(run, plan_pipeline(run));
  EXPECT_NO_THROW(require_fit(memory, {.bytes = memory.at(0, 0).total(), .is_given = true}));
  try {
    require_fit(memory, {.bytes = memory.at(0, 0).total() - 1, .is_given = true});
    ADD_FAILURE() << "one byte too many";
  } catch (const ConfigError& error) {
    const std::string what = error.what();
    for (const char* part : {"allocator slack", "pp1", "memory.limit is", "most of it is activations",
                             "checkpoint_activations = \"full\""})
      EXPECT_NE(what.find(part), std::string::npos) << part << "\n" << what;
  }
}

TEST(MemoryPlan, TheFileHoldsTheLinesOfEveryRank) {
  auto run = config("1f1b", 2, 8);
  run.mesh.tp = 2;
  run.mesh.dp = 2;
  const auto plan = plan_pipeline(run);
  const auto json = memory_json(run, plan, plan_memory(run, plan), {.bytes = 1});
  ASSERT_EQ(json["ranks"].size(), 8u);
  for (const auto& rank : json["ranks"]) {
    const auto sum = rank["weights"].get<std::int64_t>() + rank["gradients"].get<std::int64_t>() +
                     rank["optimizer"].get<std::int64_t>() + rank["buffers"].get<std::int64_t>() +
                     rank["activations"].get<std::int64_t>() + rank["communication"].get<std::int64_t>() +
                     rank["allocator_slack"].get<std::int64_t>();
    EXPECT_EQ(rank["total"].get<std::int64_t>(), sum);
  }
}

/// AG of weights in one step of the first rank.
std::ptrdiff_t gathers(const RunConfig& run) {
  const auto records = records_of_first_rank(run, plan_pipeline(run));
  return std::ranges::count_if(records, [](const auto& record) { return record.name.starts_with("AG "); });
}

TEST(Checkpointing, ARecomputeGathersNoWeights) {
  for (const char* residency : {"layer", "chunk"}) {
    for (const int pp : {1, 2}) {
      auto run = config("zb_h1", pp, 8);
      run.mesh.dp = 2;
      run.fsdp = {.stage = 3, .residency = residency};
      const auto without = gathers(run);
      EXPECT_GT(without, 0);
      for (const char* mode : {"full", "first"}) EXPECT_EQ(gathers(checkpointed(run, mode)), without) << mode;
      EXPECT_EQ(gathers(checkpointed(run, "selected", {"attention", "mlp"})), without);
    }
  }
}

}  // namespace
}  // namespace orthant::launch
