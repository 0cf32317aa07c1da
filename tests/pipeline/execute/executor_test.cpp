// SPDX-License-Identifier: Apache-2.0
// The executor on ranks that are threads, against serial training, bit for bit; and its tasks as a graph.
#include <orthant/pipeline/execute/executor.hpp>

#include <memory>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <orthant/core/stream/cpu_scheduler.hpp>
#include <orthant/core/stream/virtual_clock.hpp>
#include <orthant/pipeline/cost/timing.hpp>
#include <orthant/pipeline/generate/catalog.hpp>
#include <orthant/pipeline/plan/expand.hpp>
#include <orthant/pipeline/plan/lower.hpp>
#include <orthant/pipeline/plan/warm_up.hpp>
#include <orthant/tests/harness/run_ranks.hpp>
#include <orthant/tests/pipeline/execute/affine_program.hpp>

namespace orthant::pipeline::tests {
namespace {

using stream::StreamKind;
using train::Residency;

struct Setting {
  ScheduleRequest schedule;
  ResidencyPolicy policy = {};
  int slots = 0;  ///< 0: slots_for()
  int layers_per_stage = 1;
};

/// All channels of the schedule, in one global order; of this rank's, the ends.
struct Channels {
  Channels(comm::Fabric& fabric, stream::Scheduler& scheduler, const Schedule& lowered) {
    std::set<ChannelKey> keys;
    for (const auto& ops : lowered.ranks) {
      for (const Op& op : ops) {
        if (is_send(op.kind)) keys.insert(channel_of(lowered, op));
      }
    }
    for (const ChannelKey& key : keys) {
      auto channel =
          fabric.make_channel(fmt::format("{} to {}{}", key.source, key.destination, key.gradient ? " g" : " a"),
                              key.source, key.destination);
      if (!channel) continue;
      lanes[key] = {channel.get(), scheduler.add_stream(channel->name(), StreamKind::request)};
      owned.push_back(std::move(channel));
    }
  }
  std::map<ChannelKey, comm::ChannelLane> lanes;
  std::vector<std::unique_ptr<comm::Channel>> owned;
};

/// One rank: everything that an executor works with.
struct Rank {
  Rank(comm::Fabric& fabric, std::unique_ptr<stream::Scheduler> s, const Setting& set, const AffineModel& model)
      : scheduler(std::move(s)),
        setting(set),
        schedule(make_schedule(set.schedule)),
        slots(set.slots > 0 ? set.slots : slots_for(schedule)),
        rank(fabric.rank()),
        layouts(affine_layouts(schedule.stages_of(rank), set.layers_per_stage)),
        compute(scheduler->add_stream("compute", StreamKind::compute)),
        channels(fabric, *scheduler, lower(schedule, slots)),
        params(*scheduler, layouts, model, set.policy.residency.weights),
        program(layouts, params, static_cast<int>(model.w.size())),
        executor({.scheduler = *scheduler,
                  .compute = compute,
                  .program = program,
                  .lifecycle = params,
                  .grads = params,
                  .routes = routes_of(schedule, rank, [this](const ChannelKey& key) { return channels.lanes.at(key); }),
                  .slots = slots,
                  .tail =
                      [this](const LayerTask& task) {
                        if (task.kind == OpKind::norm_units) params.reduce(kNormUnit);
                        if (task.kind == OpKind::step) params.step(compute);
                      },
                  .layer_name = [](LayerId layer) { return fmt::format("layers.{}", layer.value); }}) {}

  std::vector<LayerTask> tasks(const Schedule& compute_only) const {
    const Schedule lowered = lower(compute_only, slots);
    return expand(lowered.ranks[static_cast<std::size_t>(rank)], layouts, setting.policy);
  }
  void train() {
    executor.begin(PassKind::training);
    executor.submit(tasks(schedule));
  }
  void evaluate() {
    executor.begin(PassKind::evaluation);
    executor.submit(tasks(forward_only(schedule)));
  }
  /// Begins a step, gives it up after its warm-up, and does the whole again, as after a step that does not stand.
  void train_after_a_false_start() {
    const Schedule lowered = lower(schedule, slots);
    const auto plan = split_warm_up(tasks(schedule), warm_up_ops(lowered)[static_cast<std::size_t>(rank)]);
    const double loss = (scheduler->drain(), program.loss());
    executor.begin(PassKind::training);
    executor.submit(plan.warm_up);
    scheduler->drain();
    program.set_loss(loss);
    executor.drop_unread();
    executor.begin(PassKind::training);
    executor.submit(plan.warm_up);
    executor.submit(plan.rest);
  }

  ~Rank() { scheduler.reset(); }  // first, with all tasks that refer to the rest

  std::unique_ptr<stream::Scheduler> scheduler;
  Setting setting;
  Schedule schedule;
  int slots;
  int rank;
  std::vector<train::StageLayout> layouts;
  stream::StreamId compute;
  Channels channels;
  AffineParams params;
  AffineProgram program;
  Executor executor;
};

/// Two steps with an evaluation between them, submitted without a wait.
void expect_serial_result(const Setting& setting) {
  const Schedule schedule = make_schedule(setting.schedule);
  const int microbatches = setting.schedule.microbatches;
  const AffineModel start = AffineModel::random(schedule.stages * setting.layers_per_stage, 5);
  AffineModel right = start;
  right.train(microbatches);
  for (int m = 0; m < microbatches; ++m) right.forward(m);
  right.train(microbatches);
  right.train(microbatches);
  const auto peaks = time_schedule(schedule, {}).peak;

  orthant::tests::run_ranks(setting.schedule.ranks, [&](comm::Fabric& fabric) {
    Rank rank(fabric, std::make_unique<stream::CpuScheduler>(), setting, start);
    rank.train();
    rank.evaluate();
    rank.train();
    rank.train_after_a_false_start();
    rank.scheduler->drain();
    std::size_t norm = 0;
    for (const auto& stage : rank.layouts) {
      for (const auto& units : stage.layers) {
        const auto layer = static_cast<std::size_t>(units.layer.value);
        EXPECT_EQ(rank.params.master(units.main)[0], right.w[layer]) << "w of layer " << layer;
        EXPECT_EQ(rank.params.master(kNormUnit)[norm++], right.b[layer]) << "b of layer " << layer;
      }
    }
    const bool has_loss = schedule.rank_of(StageId{schedule.stages - 1}) == rank.rank;
    EXPECT_EQ(rank.program.loss(), has_loss ? right.loss : 0.0);
    EXPECT_EQ(rank.executor.peak_activations(), peaks[static_cast<std::size_t>(rank.rank)]);
  });
}

class ExecutorOnRanks : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Stages, ExecutorOnRanks, testing::Values(1, 2, 3, 4, 8));

/// DualPipe keeps two copies of the weights, whose sum is not this model's business: tests/parity has it.
bool is_serial(std::string_view name) { return name != "dualpipe"; }

TEST_P(ExecutorOnRanks, GivesTheSerialResultBitForBit) {
  const int p = GetParam();
  for (const std::string_view name : schedule_names()) {
    for (int m = 1; m <= 2 * p + 1 && is_serial(name); m += p > 4 ? 7 : p > 2 ? 3 : 1) {
      for (const ResidencyPolicy policy : {ResidencyPolicy{}, {{}, 1}, {{Residency::layer, Residency::layer}, 0}}) {
        const ScheduleRequest request{.name = std::string(name), .ranks = p, .microbatches = m};
        if (!broken_rule(request).empty()) continue;
        SCOPED_TRACE(testing::Message() << name << " p" << p << " m" << m << " window " << policy.window
                                        << (policy.residency.weights == Residency::layer ? " layer" : " chunk"));
        expect_serial_result({.schedule = request, .policy = policy, .layers_per_stage = 1 + m % 3});
        if (HasFailure()) return;
      }
    }
  }
}

/// Most activations of each rank, as counted while one step ran.
std::vector<int> measured_peaks(const ScheduleRequest& request) {
  const Setting setting{.schedule = request};
  std::vector<int> peaks(static_cast<std::size_t>(request.ranks));
  const AffineModel model = AffineModel::random(make_schedule(request).stages, 5);
  orthant::tests::run_ranks(request.ranks, [&](comm::Fabric& fabric) {
    Rank rank(fabric, std::make_unique<stream::CpuScheduler>(), setting, model);
    rank.train();
    rank.scheduler->drain();
    peaks[static_cast<std::size_t>(fabric.rank())] = rank.executor.peak_activations();
  });
  return peaks;
}

TEST(ExecutorPeaks, DoNotGrowWithTheNumberOfMicrobatches) {
  constexpr int p = 4;
  for (const std::string_view name : schedule_names()) {
    if (!is_serial(name)) continue;
    SCOPED_TRACE(name);
    const ScheduleRequest few{.name = std::string(name), .ranks = p, .microbatches = 2 * p};
    ScheduleRequest many = few;
    many.microbatches = 16 * p;
    const bool holds_all = name == "gpipe" || name == "breadth_first";
    if (holds_all) {
      EXPECT_EQ(measured_peaks(many), std::vector<int>(p, many.microbatches * default_chunks(name)));
    } else {
      EXPECT_EQ(measured_peaks(many), measured_peaks(few));
    }
  }
}

/// One rank of three, on the virtual clock: two passes of 1F1B as a graph.
class ExecutorGraph : public testing::Test {
 protected:
  void build(int rank_to_record, int microbatches, int slots) {
    orthant::tests::run_ranks(3, [&](comm::Fabric& fabric) {
      auto clock = std::make_unique<stream::VirtualClock>();
      const auto& records_of_clock = *clock;
      const int layers = 1 + microbatches % 3;
      const Setting setting{.schedule = {.name = "1f1b", .ranks = 3, .microbatches = microbatches},
                            .slots = slots,
                            .layers_per_stage = layers};
      Rank rank(fabric, std::move(clock), setting, AffineModel::random(3 * layers, 5));
      rank.train();
      rank.train();
      if (fabric.rank() == rank_to_record)
        records.assign(records_of_clock.records().begin(), records_of_clock.records().end());
    });
  }

  stream::TaskId find(const std::string& name, int pass) const {
    for (const auto& record : records) {
      if (record.name == name && pass-- == 0) return record.id;
    }
    ADD_FAILURE() << "no task " << name;
    return {};
  }
  /// Whether pass 0's `from` always ends before `to` of pass `pass` begins.
  bool ordered(const std::string& from, const std::string& to, int pass = 0) const {
    return stream::reaches(records, find(from, 0), find(to, pass));
  }

  std::vector<stream::TaskRecord> records;
};

TEST_F(ExecutorGraph, MessagesWaitForWhatTheyCarryAndComputationsForWhatTheyNeed) {
  build(1, 4, 1);
  EXPECT_TRUE(ordered("RECV a s1 m2", "F s1 m2 layers.2"));
  EXPECT_TRUE(ordered("F s1 m2 layers.3", "SEND a s1 m2"));
  EXPECT_TRUE(ordered("RECV g s1 m2", "B s1 m2 layers.3"));
  EXPECT_TRUE(ordered("B s1 m2 layers.2", "SEND g s1 m2"));
}

TEST_F(ExecutorGraph, ReceivesRunAheadByTheSlots) {
  build(1, 4, 2);
  EXPECT_TRUE(ordered("RECV a s1 m0", "RECV a s1 m2"));
  EXPECT_FALSE(ordered("F s1 m0 layers.2", "RECV a s1 m2")) << "the slot is free when its reader begins";
  EXPECT_FALSE(ordered("F s1 m0 layers.2", "RECV a s1 m1"));
}

TEST_F(ExecutorGraph, NoComputationOfAPassWaitsForItsSends) {
  build(1, 4, 1);
  for (int m = 0; m < 4; ++m) {
    EXPECT_FALSE(ordered(fmt::format("SEND a s1 m{}", m), "B s1 m3 layers.2"));
    EXPECT_FALSE(ordered(fmt::format("SEND g s1 m{}", m), "STEP"));
  }
}

TEST_F(ExecutorGraph, NextPassReceivesOnlyAfterThisPassHasSent) {
  build(1, 1, 2);
  EXPECT_TRUE(ordered("SEND a s1 m0", "RECV a s1 m0", 1)) << "else the program's place for m0 would be taken";
  EXPECT_TRUE(ordered("SEND g s1 m0", "RECV g s1 m0", 1));
}

TEST_F(ExecutorGraph, NextPassBeginsAtThePipelinesEndsOnlyAfterThisPassHasSent) {
  build(0, 1, 1);
  EXPECT_TRUE(ordered("SEND a s0 m0", "F s0 m0 layers.0", 1));
  build(2, 1, 1);
  EXPECT_TRUE(ordered("SEND g s2 m0", "B s2 m0 layers.5", 1));
}

}  // namespace
}  // namespace orthant::pipeline::tests
