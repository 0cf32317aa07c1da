// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/bench/fsdp_bench.hpp>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/stream/cpu_scheduler.hpp>
#include <orthant/core/stream/virtual_clock.hpp>
#include <orthant/fsdp/baselines/copying_engine.hpp>
#include <orthant/fsdp/baselines/serial_scheduler.hpp>
#include <orthant/fsdp/engine.hpp>
#include <orthant/launch/bench/paced_collectives.hpp>

namespace orthant::launch {
namespace {

using stream::Clock;
using stream::StreamId;
using stream::StreamKind;

constexpr std::chrono::seconds kTimeout{120};
constexpr int kWarmUp = 2;
constexpr std::int64_t kShardNumel = 1024;

bool is_baseline(FsdpMode mode) { return mode == FsdpMode::per_tensor || mode == FsdpMode::copy_in; }

/// What is gathered and reduced together, and how long one takes: a layer, or a tensor of one.
struct Units {
  std::vector<std::string> names;
  int per_layer = 1;
  double forward_us, backward_us, gather_us, reduce_us, copy_us;
};

Units units_of(FsdpMode mode, const FsdpBenchOptions& options) {
  const int parts = mode == FsdpMode::per_tensor ? options.tensors : 1;
  const auto message_us = [&](double layer_ms) {
    return 1e3 * (options.latency_ms + (layer_ms - options.latency_ms) / parts);
  };
  Units units{.names = {},
              .per_layer = parts,
              .forward_us = options.forward_ms * 1e3 / parts,
              .backward_us = options.backward_ms * 1e3 / parts,
              .gather_us = message_us(options.gather_ms),
              .reduce_us = message_us(options.reduce_ms),
              .copy_us = options.copy_ms * 1e3 / parts};
  for (int i = 0; i < options.layers; ++i) {
    for (int part = 0; part < parts; ++part) {
      units.names.push_back(parts == 1 ? fmt::format("layers.{}", i) : fmt::format("layers.{}.{}", i, part));
    }
  }
  return units;
}

/// An engine, as far as training steps see it.
struct Seams {
  train::ParamLifecycle& lifecycle;
  train::GradSync& sync;
  std::function<stream::Claim(UnitId)> gradient;
  std::function<stream::Claim(UnitId)> next_weights;
};

/// What training submits for a step: forward and backward over the units with one layer gathered ahead, and an
/// optimizer step after all reductions, as with clipping, that takes no time.
class Steps {
 public:
  Steps(stream::Scheduler& scheduler, StreamId compute, const Units& units, FsdpMode mode, Seams seams)
      : scheduler_(scheduler), compute_(compute), units_(units), mode_(mode), seams_(std::move(seams)) {
    const int count = static_cast<int>(units_.names.size());
    for (int i = 0; i < count; ++i) uses_.push_back({UnitId{i}, false});
    for (int i = count; i-- > 0;) uses_.push_back({UnitId{i}, true});
  }

  void submit() {
    const auto ahead = static_cast<std::size_t>(units_.per_layer);
    const auto gather = [&](std::size_t use) {
      if (use < uses_.size()) seams_.lifecycle.unshard(uses_[use].unit);
    };
    seams_.sync.begin_step(step_++);
    for (std::size_t use = 0; use <= ahead; ++use) gather(use);
    for (std::size_t use = 0; use < uses_.size(); ++use) {
      compute(uses_[use]);
      // As pipeline/plan/expand places them, a gather goes before the reduction of the same moment. FSDP and ZeRO
      // reduce in a hook after the layer's backward, and gather in one before the next layer's.
      if (!is_baseline(mode_)) gather(use + ahead + 1);
      if (uses_[use].backward) seams_.sync.reduce(uses_[use].unit, true);
      if (is_baseline(mode_)) gather(use + ahead + 1);
    }
    stream::Task step{.name = "STEP", .stream = compute_, .body = [](stream::TaskScope&) {}};
    for (std::size_t use = 0; use < uses_.size() / 2; ++use) {
      step.reads.push_back(seams_.gradient(uses_[use].unit));
      step.writes.push_back(seams_.next_weights(uses_[use].unit));
    }
    scheduler_.submit(std::move(step));
  }

 private:
  struct Use {
    UnitId unit;
    bool backward;
  };

  void compute(const Use& use) {
    const double cost_us = use.backward ? units_.backward_us : units_.forward_us;
    stream::Task task{.name = (use.backward ? "B " : "F ") + units_.names[static_cast<std::size_t>(use.unit.value)],
                      .stream = compute_,
                      .reads = {seams_.lifecycle.weights(use.unit)},
                      .body =
                          [duration = std::chrono::duration<double, std::micro>(cost_us)](stream::TaskScope&) {
                            stream::sleep_until(Clock::now() + std::chrono::duration_cast<Clock::duration>(duration));
                          },
                      .cost_us = cost_us};
    if (use.backward) {
      const auto claims = seams_.sync.contribute(use.unit);
      task.reads.insert(task.reads.end(), claims.reads.begin(), claims.reads.end());
      task.writes.insert(task.writes.end(), claims.writes.begin(), claims.writes.end());
    }
    scheduler_.submit(std::move(task));
  }

  stream::Scheduler& scheduler_;
  StreamId compute_;
  const Units& units_;
  FsdpMode mode_;
  Seams seams_;
  std::vector<Use> uses_;
  std::int64_t step_ = 0;
};

/// The model of fsdp::Engine: equal blocks and nothing else.
struct Blocks {
  Blocks(const Units& units, int ranks) {
    for (const std::string& name : units.names) {
      shard::FlatUnit unit;
      unit.id = UnitId{static_cast<int>(table.units().size())};
      unit.name = name;
      table.add_unit(unit);
      store.add(unit.id, table.add_region(unit.id, {{name, shard::replicate({ranks, kShardNumel})}}));
    }
  }
  shard::ParameterTable table;
  model::ParameterStore store;
};

/// The two groups over all ranks.
struct Groups {
  Groups(FsdpMode mode, const Units& units, comm::Fabric& fabric) {
    const Pace pace{.all_gather_us = units.gather_us, .reduce_scatter_us = units.reduce_us};
    for (auto* group : {&gather, &reduce}) {
      const auto name = fmt::format("{} {}", name_of(mode), group == &gather ? "gather" : "reduce");
      group->emplace(fabric.make_collectives(name, fabric.all_ranks()), pace);
    }
  }
  std::optional<PacedCollectives> gather, reduce;
};

std::vector<std::string> streams_of(FsdpMode mode, FsdpStreams streams) {
  if (streams == FsdpStreams::by_mode) streams = is_baseline(mode) ? FsdpStreams::shared : FsdpStreams::separate;
  if (streams == FsdpStreams::shared) return {"compute", "communication"};
  return {"compute", "gather", "reduce"};
}

/// Submits `steps` steps of the mode to the scheduler and waits for them.
void submit_steps(FsdpMode mode, const FsdpBenchOptions& options, int steps, Groups& groups,
                  stream::Scheduler& scheduler) {
  const Units units = units_of(mode, options);
  const auto names = streams_of(mode, options.streams);
  const StreamId compute = scheduler.add_stream(names[0], StreamKind::compute);
  const StreamId first = scheduler.add_stream(names[1], StreamKind::request);
  const StreamId second = names.size() == 3 ? scheduler.add_stream(names[2], StreamKind::request) : first;
  const comm::Lane gather{&*groups.gather, first}, reduce{&*groups.reduce, second};
  const auto submit = [&](stream::Scheduler& to, Seams seams) {
    Steps training(to, compute, units, mode, std::move(seams));
    for (int step = 0; step < steps; ++step) training.submit();
    to.drain();
  };
  const auto with = [&](auto& engine) {
    return Seams{engine, engine, [&](UnitId unit) { return engine.gradient(unit); },
                 [&](UnitId unit) { return engine.next_weights(unit); }};
  };
  if (is_baseline(mode)) {
    fsdp::baselines::CopyingEngine engine(scheduler, gather, reduce,
                                          {.units = units.names,
                                           .slots = 2 * units.per_layer,
                                           .shard_numel = kShardNumel,
                                           .copy_out_us = mode == FsdpMode::copy_in ? units.copy_us : 0,
                                           .copy_in_us = units.copy_us});
    submit(scheduler, with(engine));
    return;
  }
  std::optional<fsdp::baselines::SerialScheduler> serial;
  if (mode == FsdpMode::no_overlap) serial.emplace(scheduler);
  stream::Scheduler& to = serial ? static_cast<stream::Scheduler&>(*serial) : scheduler;
  Blocks blocks(units, groups.gather->size());
  fsdp::Engine engine(blocks.table, blocks.store, to, {.gather = gather, .reduce = reduce, .compute = compute},
                      [](const shard::FlatUnit&, std::int64_t, at::Tensor master) { master.zero_(); },
                      {.residency = {.weights = train::Residency::layer, .gradients = train::Residency::layer}});
  submit(to, with(engine));
}

}  // namespace

std::string name_of(FsdpMode mode) {
  switch (mode) {
    case FsdpMode::overlap:
      return "overlap";
    case FsdpMode::no_overlap:
      return "no-overlap";
    case FsdpMode::per_tensor:
      return "per-tensor";
    case FsdpMode::copy_in:
      return "copy-in";
  }
  throw InternalError("a mode that is none");
}

void check(FsdpMode mode, const FsdpBenchOptions& options) {
  const double shorter = std::min(options.gather_ms, options.reduce_ms);
  if (mode == FsdpMode::per_tensor && options.latency_ms > shorter) {
    throw ConfigError(fmt::format(
        "--latency = {} ms is longer than a whole layer's collective, {} ms, which it is a part of; give at most {}",
        options.latency_ms, shorter, shorter));
  }
}

FsdpRun run_fsdp(FsdpMode mode, const FsdpBenchOptions& options, comm::Fabric& fabric) {
  const Units units = units_of(mode, options);
  Groups groups(mode, units, fabric);
  FsdpRun run{.mode = mode, .streams = streams_of(mode, options.streams), .steps = {}, .predicted = {}};

  stream::VirtualClock clock([&](const stream::Task& task, const stream::Segment& segment) {
    const auto kind = task_of(task.name);
    return kind == FsdpTask::gather ? units.gather_us : kind == FsdpTask::reduce ? units.reduce_us : segment.cost_us;
  });
  submit_steps(mode, options, kWarmUp + 1, groups, clock);
  run.predicted = steps_of({clock.records().begin(), clock.records().end()}).back();

  stream::CpuScheduler scheduler({.deadline = kTimeout, .record = true, .on_failure = [&fabric](std::exception_ptr) {
                                    fabric.abort("a task of an emulated rank failed");
                                  }});
  submit_steps(mode, options, kWarmUp + options.steps, groups, scheduler);
  run.steps = steps_of(scheduler.records());
  run.steps.erase(run.steps.begin(), run.steps.begin() + kWarmUp);
  return run;
}

}  // namespace orthant::launch
