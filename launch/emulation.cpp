// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/emulation.hpp>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/agree.hpp>
#include <orthant/core/stream/cpu_scheduler.hpp>
#include <orthant/mesh/device_mesh.hpp>
#include <orthant/launch/pipeline_plan.hpp>
#include <orthant/pipeline/execute/executor.hpp>
#include <orthant/pipeline/plan/expand.hpp>

namespace orthant::launch {
namespace {

using pipeline::Interval;
using pipeline::Op;
using pipeline::OpKind;
using stream::Clock;

constexpr std::chrono::seconds kTimeout{120};

OpKind kind_of(Phase phase) {
  switch (phase) {
    case Phase::forward:
      return OpKind::forward;
    case Phase::backward_input:
      return OpKind::backward_input;
    case Phase::backward_weight:
      return OpKind::backward_weight;
    case Phase::backward:
      return OpKind::backward;
  }
  throw InternalError("a phase that is none");
}

/// Stages of one layer each, whose computations sleep and write down when.
class SleepingProgram final : public train::StageProgram {
 public:
  SleepingProgram(const pipeline::Schedule& schedule, const EmulationOptions& options)
      : schedule_(schedule), options_(options) {}

  void run(const Step& step, stream::TaskScope&) override {
    const auto begin = Clock::now();
    const double ms = cost_of(kind_of(step.phase), options_.costs_ms.of(schedule_, step.stage));
    stream::sleep_until(begin +
                        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(ms)));
    times_.push_back({begin, Clock::now()});
  }
  Outline outline(Phase, LayerId) const override { return {}; }
  train::Held make_input(train::Payload, StageId, MicrobatchId) override { return payload(); }
  train::Held take_output(train::Payload, StageId, MicrobatchId) override { return payload(); }
  void hand_over(train::Payload, StageId, StageId, MicrobatchId) override {}

  /// Of the computations since the last call, in ms of the monotonic clock. Only while nothing runs.
  std::vector<Interval> take_times() {
    std::vector<Interval> result;
    const auto ms = [](Clock::time_point time) {
      return std::chrono::duration<double, std::milli>(time.time_since_epoch()).count();
    };
    for (const auto& [begin, end] : times_) result.push_back({ms(begin), ms(end)});
    times_.clear();
    return result;
  }

 private:
  train::Held payload() const {
    auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(options_.message_bytes));
    return {{bytes->data(), options_.message_bytes, DType::u8}, bytes};
  }

  const pipeline::Schedule& schedule_;
  const EmulationOptions& options_;
  std::vector<std::pair<Clock::time_point, Clock::time_point>> times_;
};

/// Weights that are always there, and gradients that nobody sums.
class NoParameters final : public train::ParamLifecycle, public train::GradSync {
 public:
  NoParameters(stream::Scheduler& scheduler, stream::StreamId compute)
      : weights_{scheduler.add_buffer("weights"), stream::content_of("weights")} {
    scheduler.submit({.name = "INIT", .stream = compute, .writes = {weights_}, .body = [](stream::TaskScope&) {}});
  }
  void unshard(UnitId) override {}
  void reshard(UnitId) override {}
  stream::Claim weights(UnitId) const override { return weights_; }
  Claims contribute(UnitId) override { return {}; }
  void begin_step(std::int64_t) override {}
  bool trains(UnitId) const override { return true; }
  void reduce(UnitId, bool) override {}

 private:
  stream::Claim weights_;
};

/// One rank, while it runs. The scheduler goes before what its tasks refer to.
struct EmulatedRank {
  EmulatedRank(const pipeline::Schedule& lowered, const EmulationOptions& options, comm::Fabric& fabric)
      : program(lowered, options), scheduler({.deadline = kTimeout, .on_failure = [&fabric](std::exception_ptr) {
                                                fabric.abort("a task of an emulated rank failed");
                                              }}) {
    const auto compute = scheduler.add_stream("compute", stream::StreamKind::compute);
    const PipelinePlan plan{
        .training = lowered, .validation = {}, .stages = {}, .residency = {}, .reason = {}, .predicted_us = 0};
    mesh.emplace(fabric, scheduler, mesh::MeshShape{.pp = fabric.size()}, plan.topology(false));
    parameters.emplace(scheduler, compute);
    executor.emplace(pipeline::ExecutorParts{
        .scheduler = scheduler,
        .compute = compute,
        .program = program,
        .lifecycle = *parameters,
        .grads = *parameters,
        .routes = pipeline::routes_of(lowered, fabric.rank(),
                                      [&](const pipeline::ChannelKey& key) {
                                        return mesh->pipeline({key.source, key.destination, key.gradient});
                                      }),
        .slots = lowered.slots,
        .tail = [](const pipeline::LayerTask&) {},
        .layer_name = [](LayerId) { return std::string(); },
        .late_receives = options.late_receives});
    std::vector<train::StageLayout> stages;
    for (const StageId stage : lowered.stages_of(fabric.rank())) {
      stages.push_back({.stage = stage, .layers = {{.layer = LayerId{stage.value}, .main = UnitId{stage.value}}}});
    }
    tasks = pipeline::expand(lowered.ranks[static_cast<std::size_t>(fabric.rank())], stages, {});
  }

  /// One step; returns when its last computation here has ended.
  std::vector<Interval> step() {
    executor->begin(pipeline::PassKind::training);
    executor->submit(tasks);
    scheduler.drain();
    return program.take_times();
  }

  SleepingProgram program;
  std::optional<mesh::DeviceMesh> mesh;
  std::optional<NoParameters> parameters;
  std::optional<pipeline::Executor> executor;
  std::vector<pipeline::LayerTask> tasks;
  stream::CpuScheduler scheduler;
};

std::string bytes_of(const std::vector<Interval>& intervals) {
  return {reinterpret_cast<const char*>(intervals.data()), intervals.size() * sizeof(Interval)};
}

std::vector<Interval> intervals_of(const std::string& bytes) {
  std::vector<Interval> intervals(bytes.size() / sizeof(Interval));
  std::memcpy(intervals.data(), bytes.data(), bytes.size());
  return intervals;
}

MeasuredStep measured(const std::vector<std::string>& of_ranks) {
  MeasuredStep step;
  double first = std::numeric_limits<double>::infinity(), last = 0;
  for (const auto& bytes : of_ranks) {
    step.ops.push_back(intervals_of(bytes));
    for (const Interval& op : step.ops.back()) {
      first = std::min(first, op.begin);
      last = std::max(last, op.end);
    }
  }
  for (auto& ops : step.ops) {
    for (Interval& op : ops) op = {op.begin - first, op.end - first};
  }
  step.makespan_ms = last - first;
  return step;
}

}  // namespace

Emulation emulate(const pipeline::Schedule& lowered, const EmulationOptions& options, comm::Fabric& fabric) {
  if (fabric.size() != static_cast<int>(lowered.ranks.size())) {
    throw ConfigError(fmt::format("schedule {} is for {} ranks, the run has {}; start {} ranks", lowered.name,
                                  lowered.ranks.size(), fabric.size(), lowered.ranks.size()));
  }
  comm::PacedFabric paced(fabric, options.link);
  EmulatedRank rank(lowered, options, paced);
  auto& control = *rank.mesh->control().collectives;
  Emulation result;
  for (int step = 0; step <= options.steps; ++step) {
    comm::barrier(control, kTimeout);
    auto all = comm::gather_strings(control, bytes_of(rank.step()), kTimeout);
    if (fabric.rank() == 0 && step > 0) result.steps.push_back(measured(all));
    options.on_step();
  }
  for (const auto& text : comm::gather_strings(control, std::to_string(rank.executor->peak_activations()), kTimeout)) {
    if (fabric.rank() == 0) result.peak_activations.push_back(std::stoi(text));
  }
  return result;
}

const MeasuredStep& median(const std::vector<MeasuredStep>& steps) {
  std::vector<const MeasuredStep*> sorted;
  for (const auto& step : steps) sorted.push_back(&step);
  std::ranges::sort(sorted, {}, [](const MeasuredStep* step) { return step->makespan_ms; });
  return *sorted.at(sorted.size() / 2);
}

double wake_up_noise_ms() {
  constexpr int kSleepers = 8, kSleeps = 100;
  std::mutex mutex;
  std::vector<double> late_ms;
  std::vector<std::thread> sleepers;
  for (int i = 0; i < kSleepers; ++i) {
    sleepers.emplace_back([&] {
      std::vector<double> mine;
      for (int n = 0; n < kSleeps; ++n) {
        const auto due = Clock::now() + std::chrono::milliseconds(5);
        stream::sleep_until(due);
        mine.push_back(std::chrono::duration<double, std::milli>(Clock::now() - due).count());
      }
      const std::lock_guard lock(mutex);
      late_ms.insert(late_ms.end(), mine.begin(), mine.end());
    });
  }
  for (auto& sleeper : sleepers) sleeper.join();
  const auto p99 = late_ms.begin() + static_cast<std::ptrdiff_t>(late_ms.size() * 99 / 100);
  std::nth_element(late_ms.begin(), p99, late_ms.end());
  return *p99;
}

}  // namespace orthant::launch
