// SPDX-License-Identifier: Apache-2.0
// A stage of an AffineModel as the executor sees it, with layers that take a random time.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include <orthant/core/train/stage_program.hpp>
#include <orthant/tests/pipeline/affine_params.hpp>

namespace orthant::pipeline::tests {

class AffineProgram : public train::StageProgram {
 public:
  AffineProgram(const train::StageLayout& layout, AffineParams& params, int stages, int microbatches)
      : params_(params),
        first_(layout.layers.front().layer),
        last_(layout.layers.back().layer),
        is_first_stage_(layout.stage.value == 0),
        is_last_stage_(layout.stage.value == stages - 1),
        flows_(static_cast<std::size_t>(microbatches)),
        random_(static_cast<unsigned>(layout.stage.value)) {}

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

  train::Held make_input(train::Payload payload, MicrobatchId m) override {
    return held(place(payload, m) = std::make_shared<double>());
  }
  train::Held take_output(train::Payload payload, MicrobatchId m) override {
    return held(std::exchange(place(payload, m), {}));
  }

  double loss() const { return loss_; }

 private:
  using Value = std::shared_ptr<double>;
  struct Flow {
    Value activation, gradient;
  };
  struct Saved {
    double x = 0, dy = 0;
  };

  static train::Held held(const Value& value) { return {{value.get(), 1, DType::f64}, value}; }
  Value& place(train::Payload payload, MicrobatchId m) {
    Flow& flow = flows_.at(static_cast<std::size_t>(m.value));
    return payload == train::Payload::activation ? flow.activation : flow.gradient;
  }
  std::size_t norm_index(const Step& step) const { return static_cast<std::size_t>(step.layer.value - first_.value); }
  double w(const Step& step) const { return params_.gathered(UnitId{step.layer.value})[0]; }

  void forward(const Step& step, Saved& saved) {
    Value& activation = place(train::Payload::activation, step.microbatch);
    if (is_first_stage_ && step.layer == first_)
      activation = std::make_shared<double>(AffineModel::input(step.microbatch.value));
    saved.x = *std::exchange(activation, {});
    const double y = product(w(step), saved.x) + params_.gathered(kNormUnit)[norm_index(step)];
    if (is_last_stage_ && step.layer == last_) {
      loss_ += product(y, y) / 2;
      saved.dy = y;
    } else {
      activation = std::make_shared<double>(y);
    }
  }
  void backward_input(const Step& step, Saved& saved) {
    Value& gradient = place(train::Payload::gradient, step.microbatch);
    if (!(is_last_stage_ && step.layer == last_)) saved.dy = *std::exchange(gradient, {});
    auto& db = params_.gradient(kNormUnit);
    if (step.overwrite_norms) db.assign(db.size(), 0.0);
    db[norm_index(step)] += saved.dy;
    gradient = std::make_shared<double>(product(w(step), saved.dy));
  }
  void backward_weight(const Step& step, Saved& saved) {
    double& dw = params_.gradient(UnitId{step.layer.value})[0];
    dw = (step.overwrite_main ? 0.0 : dw) + product(saved.dy, saved.x);
  }

  AffineParams& params_;
  LayerId first_, last_;
  bool is_first_stage_, is_last_stage_;
  std::vector<Flow> flows_;
  std::map<std::pair<LayerId, MicrobatchId>, Saved> saved_;
  std::mt19937 random_;
  double loss_ = 0;
};

}  // namespace orthant::pipeline::tests
