// SPDX-License-Identifier: Apache-2.0
// The executor on ranks that are threads, against serial training, bit for bit; and its tasks as a graph.
#include <orthant/pipeline/executor.hpp>

#include <memory>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <orthant/core/stream/cpu_scheduler.hpp>
#include <orthant/core/stream/virtual_clock.hpp>
#include <orthant/pipeline/expand.hpp>
#include <orthant/pipeline/lower.hpp>
#include <orthant/tests/harness/run_ranks.hpp>
#include <orthant/tests/pipeline/affine_program.hpp>

namespace orthant::pipeline::tests {
namespace {

using stream::StreamKind;
using train::Residency;

struct Setting {
  std::string_view schedule;
  int stages = 1;
  int microbatches = 1;
  int slots = 1;
  Residency residency = Residency::chunk;
  int layers_per_stage() const { return 1 + microbatches % 3; }
};

/// All channels of the pipeline, in one global order; of this rank's, the ends.
struct Channels {
  Channels(comm::Fabric& fabric, stream::Scheduler& scheduler) {
    for (int s = 0; s + 1 < fabric.size(); ++s) {
      make(fabric, scheduler, {s, s + 1}, links.send_activation, links.receive_activation);
      make(fabric, scheduler, {s + 1, s}, links.send_gradient, links.receive_gradient);
    }
  }
  void make(comm::Fabric& fabric, stream::Scheduler& scheduler, std::pair<int, int> ends, comm::ChannelLane& send,
            comm::ChannelLane& receive) {
    const auto [source, destination] = ends;
    auto channel = fabric.make_channel(fmt::format("{} to {}", source, destination), source, destination);
    if (!channel) return;
    comm::ChannelLane& lane = source == fabric.rank() ? send : receive;
    lane.channel = channel.get();
    lane.stream = scheduler.add_stream(channel->name(), StreamKind::request);
    owned.push_back(std::move(channel));
  }
  StageLinks links;
  std::vector<std::unique_ptr<comm::Channel>> owned;
};

/// One rank: everything that an executor works with.
struct Rank {
  Rank(comm::Fabric& fabric, std::unique_ptr<stream::Scheduler> s, const Setting& set, const AffineModel& model)
      : scheduler(std::move(s)),
        setting(set),
        rank(static_cast<std::size_t>(fabric.rank())),
        layout(affine_layout(fabric.rank(), fabric.rank() * set.layers_per_stage(), set.layers_per_stage())),
        compute(scheduler->add_stream("compute", StreamKind::compute)),
        channels(fabric, *scheduler),
        params(*scheduler, layout, model, set.residency),
        program(layout, params, fabric.size(), set.microbatches),
        executor({.scheduler = *scheduler,
                  .compute = compute,
                  .program = program,
                  .lifecycle = params,
                  .grads = params,
                  .links = channels.links,
                  .slots = set.slots,
                  .tail =
                      [this](const LayerTask& task) {
                        if (task.kind == OpKind::norm_units) params.reduce(kNormUnit);
                        if (task.kind == OpKind::step) params.step(compute);
                      },
                  .layer_name = [](LayerId layer) { return fmt::format("layers.{}", layer.value); }}) {}

  void train(std::string_view schedule) { submit(make_schedule(schedule, setting.stages, setting.microbatches)); }
  void evaluate() { submit(forward_only(setting.stages, setting.microbatches)); }
  void submit(const Schedule& schedule) {
    const Schedule lowered = lower(schedule, setting.slots);
    executor.submit(expand(lowered.ranks[rank], layout, setting.residency));
  }

  ~Rank() { scheduler.reset(); }  // first, with all tasks that refer to the rest

  std::unique_ptr<stream::Scheduler> scheduler;
  Setting setting;
  std::size_t rank;
  train::StageLayout layout;
  stream::StreamId compute;
  Channels channels;
  AffineParams params;
  AffineProgram program;
  Executor executor;
};

/// Two steps with an evaluation between them, submitted without a wait.
void expect_serial_result(const Setting& setting) {
  const AffineModel start = AffineModel::random(setting.stages * setting.layers_per_stage(), 5);
  AffineModel right = start;
  right.train(setting.microbatches);
  for (int m = 0; m < setting.microbatches; ++m) right.forward(m);
  right.train(setting.microbatches);

  orthant::tests::run_ranks(setting.stages, [&](comm::Fabric& fabric) {
    Rank rank(fabric, std::make_unique<stream::CpuScheduler>(), setting, start);
    rank.train(setting.schedule);
    rank.evaluate();
    rank.train(setting.schedule);
    rank.scheduler->drain();
    const auto& layers = rank.layout.layers;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const auto layer = static_cast<std::size_t>(layers[i].layer.value);
      EXPECT_EQ(rank.params.master(layers[i].main)[0], right.w[layer]) << "w of layer " << layer;
      EXPECT_EQ(rank.params.master(kNormUnit)[i], right.b[layer]) << "b of layer " << layer;
    }
    EXPECT_EQ(rank.program.loss(), fabric.rank() + 1 == setting.stages ? right.loss : 0.0);
  });
}

class ExecutorOnRanks : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Stages, ExecutorOnRanks, testing::Values(1, 2, 3, 4, 8));

TEST_P(ExecutorOnRanks, GivesTheSerialResultBitForBit) {
  for (int m = 1; m <= 9; ++m) {
    for (const auto schedule : {"gpipe", "1f1b", "zb_h1"}) {
      for (const Residency residency : {Residency::chunk, Residency::layer}) {
        SCOPED_TRACE(testing::Message() << schedule << " m" << m
                                        << (residency == Residency::layer ? " layer" : " chunk"));
        expect_serial_result({schedule, GetParam(), m, 1 + m % 2, residency});
        if (HasFailure()) return;
      }
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
      const Setting setting{"1f1b", 3, microbatches, slots, Residency::chunk};
      Rank rank(fabric, std::move(clock), setting, AffineModel::random(3 * setting.layers_per_stage(), 5));
      rank.train("1f1b");
      rank.train("1f1b");
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
  EXPECT_TRUE(ordered("RECV a m2", "F s1 m2 layers.2"));
  EXPECT_TRUE(ordered("F s1 m2 layers.3", "SEND a m2"));
  EXPECT_TRUE(ordered("RECV g m2", "B s1 m2 layers.3"));
  EXPECT_TRUE(ordered("B s1 m2 layers.2", "SEND g m2"));
}

TEST_F(ExecutorGraph, ReceivesRunAheadByTheSlots) {
  build(1, 4, 2);
  EXPECT_TRUE(ordered("F s1 m0 layers.2", "RECV a m2"));
  EXPECT_FALSE(ordered("F s1 m0 layers.3", "RECV a m2")) << "the first layer frees the slot";
  EXPECT_FALSE(ordered("F s1 m0 layers.2", "RECV a m1"));
}

TEST_F(ExecutorGraph, NoComputationOfAPassWaitsForItsSends) {
  build(1, 4, 1);
  for (int m = 0; m < 4; ++m) {
    EXPECT_FALSE(ordered(fmt::format("SEND a m{}", m), "B s1 m3 layers.2"));
    EXPECT_FALSE(ordered(fmt::format("SEND g m{}", m), "STEP"));
  }
}

TEST_F(ExecutorGraph, NextPassReceivesOnlyAfterThisPassHasSent) {
  build(1, 1, 2);
  EXPECT_TRUE(ordered("SEND a m0", "RECV a m0", 1)) << "else the program's place for m0 would be taken";
  EXPECT_TRUE(ordered("SEND g m0", "RECV g m0", 1));
}

TEST_F(ExecutorGraph, NextPassBeginsAtThePipelinesEndsOnlyAfterThisPassHasSent) {
  build(0, 1, 1);
  EXPECT_TRUE(ordered("SEND a m0", "F s0 m0 layers.0", 1));
  build(2, 1, 1);
  EXPECT_TRUE(ordered("SEND g m0", "B s2 m0 layers.5", 1));
}

}  // namespace
}  // namespace orthant::pipeline::tests
