// SPDX-License-Identifier: Apache-2.0
// The parameters of an AffineModel's stages on one rank, gathered and reduced by tasks on streams of their own: under
// Residency::layer two weight and two gradient buffers serve all layers, so a missing wait gives wrong numbers (and a
// thread sanitizer's report).
#pragma once

#include <map>
#include <span>
#include <utility>
#include <vector>

#include <orthant/core/base/error.hpp>
#include <orthant/core/stream/scheduler.hpp>
#include <orthant/core/train/param_lifecycle.hpp>
#include <orthant/tests/pipeline/execute/affine_model.hpp>

namespace orthant::pipeline::tests {

class AffineParams : public train::ParamLifecycle, public train::GradSync {
 public:
  AffineParams(stream::Scheduler& scheduler, std::span<const train::StageLayout> stages, const AffineModel& model,
               train::Residency residency)
      : scheduler_(scheduler),
        gather_(scheduler.add_stream("gather", stream::StreamKind::compute)),
        reduce_(scheduler.add_stream("reduce", stream::StreamKind::compute)) {
    std::vector<double> all_b;
    int blocks = 0;
    for (const auto& stage : stages) {
      for (const auto& units : stage.layers) {
        const auto layer = static_cast<std::size_t>(units.layer.value);
        const int buffer = residency == train::Residency::layer ? blocks++ % 2 : blocks++;
        add_unit(units.main, buffer, {model.w[layer]});
        all_b.push_back(model.b[layer]);
      }
    }
    add_unit(kNormUnit, -1, all_b);
  }

  /// Views for bodies; what they hold is what the claims say.
  std::vector<double>& gathered(UnitId unit) { return buffers_.at(units_.at(unit).buffer).weights; }
  std::vector<double>& gradient(UnitId unit) { return buffers_.at(units_.at(unit).buffer).gradients; }
  const std::vector<double>& master(UnitId unit) const { return units_.at(unit).master; }

  void unshard(UnitId id) override {
    Unit& unit = units_.at(id);
    Buffer& buffer = buffers_.at(unit.buffer);
    buffer.holds = id;
    buffer.weights_content = next_content();
    submit("AG", gather_, {{unit.master_id, unit.master_content}}, {{buffer.weights_id, buffer.weights_content}},
           [&unit, &buffer] { buffer.weights = unit.master; });
  }
  void reshard(UnitId id) override { buffers_.at(units_.at(id).buffer).holds = UnitId{}; }
  stream::Claim weights(UnitId id) const override {
    const Buffer& buffer = buffers_.at(units_.at(id).buffer);
    invariant(buffer.holds == id, "claims weights that are not gathered");
    return {buffer.weights_id, buffer.weights_content};
  }

  Claims contribute(UnitId id) override {
    Buffer& buffer = buffers_.at(units_.at(id).buffer);
    Claims claims;
    claims.overwrite = !std::exchange(buffer.has_contribution, true);
    if (!claims.overwrite) claims.reads = {{buffer.gradients_id, buffer.gradients_content}};
    buffer.gradients_content = next_content();
    claims.writes = {{buffer.gradients_id, buffer.gradients_content}};
    return claims;
  }
  void begin_step(std::int64_t) override {}
  bool trains(UnitId) const override { return true; }
  void reduce(UnitId id, bool = true) override {
    Unit& unit = units_.at(id);
    Buffer& buffer = buffers_.at(unit.buffer);
    buffer.has_contribution = false;
    std::vector<stream::Claim> reads{{buffer.gradients_id, buffer.gradients_content}};
    const bool first = !std::exchange(unit.reduced, true);
    if (!first) reads.push_back({unit.sum_id, unit.sum_content});
    unit.sum_content = next_content();
    submit("RS", reduce_, std::move(reads), {{unit.sum_id, unit.sum_content}}, [&unit, &buffer, first] {
      if (first) unit.sum.assign(unit.sum.size(), 0.0);
      for (std::size_t i = 0; i < unit.sum.size(); ++i) unit.sum[i] += buffer.gradients[i];
    });
  }

  /// The optimizer, on `stream`.
  void step(stream::StreamId stream) {
    for (auto& [id, unit] : units_) {
      unit.reduced = false;
      unit.master_content = next_content();
      submit("STEP", stream, {{unit.sum_id, unit.sum_content}}, {{unit.master_id, unit.master_content}}, [&u = unit] {
        for (std::size_t i = 0; i < u.sum.size(); ++i) u.master[i] -= product(kLearningRate, u.sum[i]);
      });
    }
  }

 private:
  struct Buffer {
    stream::BufferId weights_id, gradients_id;
    stream::Content weights_content = 0, gradients_content = 0;
    UnitId holds;  ///< as of what is submitted
    bool has_contribution = false;
    std::vector<double> weights, gradients;
  };
  struct Unit {
    int buffer = 0;
    stream::BufferId master_id, sum_id;
    stream::Content master_content = 0, sum_content = 0;
    bool reduced = false;  ///< in this pass
    std::vector<double> master, sum;
  };

  stream::Content next_content() { return stream::content_of("affine", ++contents_); }

  void add_unit(UnitId id, int index, std::vector<double> master) {
    Buffer& buffer = buffers_[index];
    if (buffer.weights.empty()) {
      buffer.weights_id = scheduler_.add_buffer("weights");
      buffer.gradients_id = scheduler_.add_buffer("gradients");
      buffer.weights.resize(master.size());
      buffer.gradients.resize(master.size());
    }
    Unit& unit = units_[id];
    unit.buffer = index;
    unit.master_id = scheduler_.add_buffer("master");
    unit.sum_id = scheduler_.add_buffer("sum");
    unit.sum.resize(master.size());
    unit.master = std::move(master);
    unit.master_content = next_content();
    submit("INIT", gather_, {}, {{unit.master_id, unit.master_content}}, [] {});
  }

  template <class Body>
  void submit(const char* name, stream::StreamId stream, std::vector<stream::Claim> reads,
              std::vector<stream::Claim> writes, Body body) {
    stream::Task task;
    task.name = name;
    task.stream = stream;
    task.reads = std::move(reads);
    task.writes = std::move(writes);
    task.body = [body = std::move(body)](stream::TaskScope&) { body(); };
    scheduler_.submit(std::move(task));
  }

  stream::Scheduler& scheduler_;
  stream::StreamId gather_, reduce_;
  std::map<int, Buffer> buffers_;
  std::map<UnitId, Unit> units_;
  std::int64_t contents_ = 0;
};

}  // namespace orthant::pipeline::tests
