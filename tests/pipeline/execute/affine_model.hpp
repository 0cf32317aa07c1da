// SPDX-License-Identifier: Apache-2.0
// A model made of numbers: each layer is y = w x + b, the loss is the sum of y^2 / 2 over micro-batches, and plain
// gradient descent moves w and b. Layer i holds w in unit i; all b of a stage are one norm unit. Serial training gives
// the right bits.
#pragma once

#include <random>
#include <vector>

#include <orthant/core/train/stage_layout.hpp>

namespace orthant::pipeline::tests {

inline constexpr UnitId kNormUnit{1000};
inline constexpr double kLearningRate = 1e-3;

/// a b, rounded: a call, so that no compiler fuses it with an addition here and not there.
[[gnu::noinline]] inline double product(double a, double b) { return a * b; }

struct AffineModel {
  std::vector<double> w, b;  ///< per layer
  double loss = 0;           ///< sum over all forwards so far

  static AffineModel random(int layers, unsigned seed) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<double> number(0.5, 1.2);
    AffineModel model;
    for (int i = 0; i < layers; ++i) {
      model.w.push_back(number(generator));
      model.b.push_back(number(generator) - 0.8);
    }
    return model;
  }
  static double input(int microbatch) { return 0.25 + 0.125 * microbatch; }

  /// Adds the micro-batch's loss; x[i] is the input of layer i.
  std::vector<double> forward(int microbatch) {
    std::vector<double> x{input(microbatch)};
    for (std::size_t i = 0; i < w.size(); ++i) x.push_back(product(w[i], x[i]) + b[i]);
    loss += product(x.back(), x.back()) / 2;
    return x;
  }

  /// One step, micro-batch after micro-batch.
  void train(int microbatches) {
    const std::size_t layers = w.size();
    std::vector<double> dw(layers), db(layers);
    for (int m = 0; m < microbatches; ++m) {
      const std::vector<double> x = forward(m);
      double dy = x[layers];
      for (std::size_t i = layers; i-- > 0;) {
        dw[i] += product(dy, x[i]);
        db[i] += dy;
        dy *= w[i];
      }
    }
    for (std::size_t i = 0; i < layers; ++i) {
      w[i] -= product(kLearningRate, dw[i]);
      b[i] -= product(kLearningRate, db[i]);
    }
  }
};

/// Stages of a rank, `layers` layers each: stage s has layers s * layers and on.
inline std::vector<train::StageLayout> affine_layouts(const std::vector<StageId>& stages, int layers) {
  std::vector<train::StageLayout> layouts;
  for (const StageId stage : stages) {
    layouts.push_back({.stage = stage, .layers = {}});
    for (int i = stage.value * layers; i < (stage.value + 1) * layers; ++i) {
      layouts.back().layers.push_back(
          {.layer = LayerId{i}, .main = UnitId{i}, .norms = kNormUnit, .alternating = true});
    }
  }
  return layouts;
}

}  // namespace orthant::pipeline::tests
