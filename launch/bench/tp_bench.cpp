// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/bench/tp_bench.hpp>

#include <algorithm>
#include <chrono>
#include <memory>

#include <orthant/core/base/error.hpp>
#include <orthant/core/stream/cpu_scheduler.hpp>
#include <orthant/core/stream/timer.hpp>
#include <orthant/core/stream/virtual_clock.hpp>
#include <orthant/launch/bench/paced_collectives.hpp>
#include <orthant/tp/sharded_factory.hpp>

namespace orthant::launch {
namespace {

using stream::Clock;
using stream::Segment;
using Microseconds = std::chrono::duration<double, std::micro>;

constexpr std::chrono::seconds kPassTimeout{120};
constexpr std::int64_t kRowsPerRank = 64, kColumnsPerRank = 32;

bool is_forward(TpMode mode) { return mode == TpMode::forward || mode == TpMode::forward_pieces; }

/// A column- and a row-parallel layer, of which every product and every collective over all rows takes what it is to
/// take.
class Pair {
 public:
  Pair(TpMode mode, const TpBenchOptions& options, comm::Lane lane)
      : rows_(kRowsPerRank * lane.collectives->size()),
        factory_({.hidden = columns(lane), .heads = lane.collectives->size(), .kv_heads = lane.collectives->size()},
                 {table_, store_}, lane, tp_options(mode, options, lane)) {
    table_.add_unit({.id = kUnit, .name = "layers"});
    up_ = factory_.linear({.role = model::LinearRole::column,
                           .unit = kUnit,
                           .in = columns(lane),
                           .parts = {{"up_proj.weight", columns(lane)}}});
    down_ = factory_.linear({.role = model::LinearRole::row,
                             .unit = kUnit,
                             .in = columns(lane),
                             .parts = {{"down_proj.weight", columns(lane)}}});
  }

  model::Declaration declare(Phase phase) const {
    model::Declaration declared;
    const bool forward = phase == Phase::forward;
    (forward ? up_ : down_)->declare(phase, rows_, declared);
    (forward ? down_ : up_)->declare(phase, rows_, declared);
    return declared;
  }

 private:
  static constexpr UnitId kUnit{0};

  static std::int64_t columns(comm::Lane lane) { return kColumnsPerRank * lane.collectives->size(); }

  static tp::TpOptions tp_options(TpMode mode, const TpBenchOptions& options, comm::Lane lane) {
    const double ranks = lane.collectives->size();
    const double rows = kRowsPerRank * ranks, width = kColumnsPerRank * ranks;
    tp::TpOptions tp{.overlap = mode != TpMode::backward_no_overlap,
                     .keep_gathered = mode == TpMode::backward_kept,
                     .gather_pieces = mode == TpMode::forward_pieces ? options.pieces : 1};
    tp.flops_per_us = 2 * rows * width * kColumnsPerRank / (options.product_ms * 1e3);
    tp.bytes_per_us =
        rows * width * static_cast<double>(tp.element_bytes) * (ranks - 1) / ranks / (options.collective_ms * 1e3);
    return tp;
  }

  std::int64_t rows_;
  shard::ParameterTable table_;
  model::ParameterStore store_;
  tp::ShardedFactory factory_;
  std::unique_ptr<model::Linear> up_, down_;
};

bool is_gather(const std::string& name) { return name.starts_with("AG"); }

/// Runs what a layer declares: sleeps for products, and has small messages take the time of large ones.
class Player {
 public:
  explicit Player(comm::Collectives& group) : group_(group), all_(static_cast<std::size_t>(group.size())) {}

  struct Product {
    double begin_us, end_us;  ///< from the body's begin
  };

  void play(const model::Declaration& declared, stream::TaskScope& scope, std::vector<Product>& products) {
    const auto begin = Clock::now();
    const auto now_us = [&] { return Microseconds(Clock::now() - begin).count(); };
    for (const Segment& segment : declared.segments) {
      switch (segment.kind) {
        case Segment::Kind::compute: {
          const double from = now_us();
          stream::sleep_until(Clock::now() +
                              std::chrono::duration_cast<Clock::duration>(Microseconds(segment.cost_us)));
          products.push_back({from, now_us()});
          break;
        }
        case Segment::Kind::post:
          scope.post([this, gather = is_gather(declared.nested[static_cast<std::size_t>(segment.nested)].name)] {
            const comm::Span all{all_.data(), static_cast<std::int64_t>(all_.size()), DType::f32};
            if (gather) return group_.all_gather({&mine_, 1, DType::f32}, all);
            return group_.reduce_scatter(all, {&mine_, 1, DType::f32}, comm::Into::replace);
          });
          break;
        case Segment::Kind::wait:
          scope.wait(segment.nested);
          break;
      }
    }
  }

 private:
  comm::Collectives& group_;
  std::vector<float> all_;
  float mine_ = 0;
};

/// How long the first collective that begins so is declared to take; all of its kind take as long.
double cost_us(const model::Declaration& declared, bool gather) {
  for (const Segment& segment : declared.segments) {
    if (segment.kind == Segment::Kind::post &&
        is_gather(declared.nested[static_cast<std::size_t>(segment.nested)].name) == gather)
      return segment.cost_us;
  }
  return 0;
}

double products_us(const model::Declaration& declared) {
  double sum = 0;
  for (const Segment& segment : declared.segments) {
    if (segment.kind == Segment::Kind::compute) sum += segment.cost_us;
  }
  return sum;
}

/// In the same order on every scheduler, so that what was declared for one holds for the others.
struct Streams {
  stream::StreamId compute, tp;
};

Streams add_streams(stream::Scheduler& scheduler) {
  return {scheduler.add_stream("compute", stream::StreamKind::compute),
          scheduler.add_stream("tp", stream::StreamKind::request)};
}

/// One pass: a task a pair of layers.
template <class Body>
void submit_pass(stream::Scheduler& scheduler, Streams streams, const TpBenchOptions& options,
                 const model::Declaration& declared, const Body& body) {
  for (int layer = 0; layer < options.layers; ++layer) {
    scheduler.submit({.name = "layers." + std::to_string(layer),
                      .stream = streams.compute,
                      .body = [layer, body](stream::TaskScope& scope) { body(layer, scope); },
                      .nested = declared.nested,
                      .segments = declared.segments});
  }
  scheduler.drain();
}

TpPass pass_of(std::span<const stream::TaskRecord> records, const std::vector<std::vector<Player::Product>>& products) {
  TpPass pass{.ms = (records.back().end_us - records.front().begin_us) / 1e3, .compute_ms = 0, .boxes = {}};
  const auto add = [&](TpBoxKind kind, double begin_us, double end_us) {
    const double start = records.front().begin_us;
    pass.boxes.push_back({kind, (begin_us - start) / 1e3, (end_us - start) / 1e3});
  };
  for (std::size_t layer = 0; layer < records.size(); ++layer) {
    const auto& record = records[layer];
    for (const auto& product : products[layer]) {
      pass.compute_ms += (product.end_us - product.begin_us) / 1e3;
      add(TpBoxKind::product, record.begin_us + product.begin_us, record.begin_us + product.end_us);
    }
    for (const auto& nested : record.nested)
      add(is_gather(nested.name) ? TpBoxKind::gather : TpBoxKind::sum, nested.begin_us, nested.end_us);
  }
  return pass;
}

}  // namespace

std::string name_of(TpMode mode) {
  switch (mode) {
    case TpMode::backward:
      return "backward";
    case TpMode::backward_no_overlap:
      return "backward, no overlap";
    case TpMode::backward_kept:
      return "backward, rows kept";
    case TpMode::forward:
      return "forward";
    case TpMode::forward_pieces:
      return "forward, in pieces";
  }
  throw InternalError("a mode that is none");
}

const TpPass& TpRun::median() const {
  std::vector<const TpPass*> sorted;
  for (const auto& pass : passes) sorted.push_back(&pass);
  std::ranges::sort(sorted, {}, [](const TpPass* pass) { return pass->ms; });
  return *sorted[sorted.size() / 2];
}

TpRun run_tp(TpMode mode, const TpBenchOptions& options, comm::Fabric& fabric) {
  const Phase phase = is_forward(mode) ? Phase::forward : Phase::backward;
  TpRun run{.mode = mode, .passes = {}};
  auto bare = fabric.make_collectives(name_of(mode), fabric.all_ranks());
  stream::VirtualClock clock;
  const Streams predicted = add_streams(clock);
  const auto declared = Pair(mode, options, {bare.get(), predicted.tp}).declare(phase);
  submit_pass(clock, predicted, options, declared, [](int, stream::TaskScope&) {});
  run.predicted_exposed_ms = (clock.makespan_us() - options.layers * products_us(declared)) / 1e3;

  std::vector<std::vector<Player::Product>> products(static_cast<std::size_t>(options.layers));
  PacedCollectives group(std::move(bare),
                         {.all_gather_us = cost_us(declared, true), .reduce_scatter_us = cost_us(declared, false)});
  Player player(group);
  stream::CpuScheduler scheduler(
      {.deadline = kPassTimeout, .record = true, .on_failure = [&fabric](std::exception_ptr) {
         fabric.abort("a task of an emulated rank failed");
       }});
  const Streams streams = add_streams(scheduler);
  for (int step = 0; step <= options.steps; ++step) {
    for (auto& layer : products) layer.clear();
    submit_pass(scheduler, streams, options, declared, [&](int layer, stream::TaskScope& scope) {
      player.play(declared, scope, products[static_cast<std::size_t>(layer)]);
    });
    const auto records = scheduler.records();
    const auto last = std::span(records).last(static_cast<std::size_t>(options.layers));
    if (step > 0) run.passes.push_back(pass_of(last, products));
  }
  return run;
}

}  // namespace orthant::launch
