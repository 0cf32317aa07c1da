// SPDX-License-Identifier: Apache-2.0
// The stages of an AffineModel on one rank as the executor sees them, with layers that take a random time.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <thread>
#include <tuple>
#include <utility>

#include <orthant/core/train/stage_program.hpp>
#include <orthant/tests/pipeline/execute/affine_params.hpp>

namespace orthant::pipeline::tests {

class AffineProgram : public train::StageProgram {
 public:
  /// layers  of the whole model: the first takes the input, the last makes the loss.
  AffineProgram(std::span<const train::StageLayout> stages, AffineParams& params, int layers)
      : params_(params), last_layer_(layers - 1), random_(static_cast<unsigned>(stages.front().stage.value)) {
    for (const auto& stage : stages) {
      for (const auto& units : stage.layers) norm_index_.emplace(units.layer, norm_index_.size());
    }
  }

  void run(const Step& step, stream::TaskScope&) override {
    if (random_() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 40));
    Saved& saved = saved_[{step.layer, step.microbatch}];
    switch (step.phase) {
      case Phase::forward:
        return forward(step, saved);
      case Phase::backward_input:
        return backward_input(step, saved);
      case Phase::backward_weight:
        return backward_weight(step, saved);
      case Phase::backward:
        backward_input(step, saved);
        return backward_weight(step, saved);
    }
  }
  Outline outline(Phase, LayerId) const override { return {}; }

  train::Held make_input(train::Payload payload, StageId stage, MicrobatchId m) override {
    return held(place(payload, stage, m) = std::make_shared<double>());
  }
  train::Held take_output(train::Payload payload, StageId stage, MicrobatchId m) override {
    return held(std::exchange(place(payload, stage, m), {}));
  }
  void hand_over(train::Payload payload, StageId from, StageId to, MicrobatchId m) override {
    place(payload, to, m) = std::exchange(place(payload, from, m), {});
  }

  double loss() const { return loss_; }
  void set_loss(double loss) { loss_ = loss; }

 private:
  using Value = std::shared_ptr<double>;
  struct Saved {
    double x = 0, dy = 0;
  };

  static train::Held held(const Value& value) { return {{value.get(), 1, DType::f64}, value}; }
  Value& place(train::Payload payload, StageId stage, MicrobatchId m) {
    const std::lock_guard lock(places_mutex_);  // of the map alone: its values are guarded by claims
    return places_[{payload, stage, m}];
  }
  double w(const Step& step) const { return params_.gathered(UnitId{step.layer.value})[0]; }

  void forward(const Step& step, Saved& saved) {
    Value& activation = place(train::Payload::activation, step.stage, step.microbatch);
    if (step.layer.value == 0) activation = std::make_shared<double>(AffineModel::input(step.microbatch.value));
    saved.x = *std::exchange(activation, {});
    const double y = product(w(step), saved.x) + params_.gathered(kNormUnit)[norm_index_.at(step.layer)];
    if (step.layer.value == last_layer_) {
      loss_ += product(y, y) / 2;
      saved.dy = y;
    } else {
      activation = std::make_shared<double>(y);
    }
  }
  void backward_input(const Step& step, Saved& saved) {
    Value& gradient = place(train::Payload::gradient, step.stage, step.microbatch);
    if (step.layer.value != last_layer_) saved.dy = *std::exchange(gradient, {});
    auto& db = params_.gradient(kNormUnit);
    if (step.overwrite_norms) db.assign(db.size(), 0.0);
    db[norm_index_.at(step.layer)] += saved.dy;
    gradient = std::make_shared<double>(product(w(step), saved.dy));
  }
  void backward_weight(const Step& step, Saved& saved) {
    double& dw = params_.gradient(UnitId{step.layer.value})[0];
    dw = (step.overwrite_main ? 0.0 : dw) + product(saved.dy, saved.x);
  }

  AffineParams& params_;
  int last_layer_;
  std::map<LayerId, std::size_t> norm_index_;
  std::mutex places_mutex_;
  std::map<std::tuple<train::Payload, StageId, MicrobatchId>, Value> places_;
  std::map<std::pair<LayerId, MicrobatchId>, Saved> saved_;
  std::mt19937 random_;
  double loss_ = 0;
};

}  // namespace orthant::pipeline::tests
