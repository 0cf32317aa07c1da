// SPDX-License-Identifier: Apache-2.0
// How long each layer's F, I and W take: medians over the last micro-batches. What a run's cost profile is made of.
#pragma once

#include <map>
#include <vector>

#include <orthant/core/base/id.hpp>
#include <orthant/core/base/phase.hpp>

namespace orthant::step {

/// Of one layer and micro-batch, in microseconds.
struct LayerCost {
  double forward_us = 0;
  double input_us = 0;
  double weight_us = 0;
};

class CostRecorder {
 public:
  /// One run of a layer; `weight_us` of a whole backward is what its weight gradients took.
  void add(LayerId layer, Phase phase, double total_us, double weight_us);
  /// Of the layers that have run forward and backward.
  std::map<LayerId, LayerCost> medians() const;

 private:
  /// The latest samples; a fixed number of them, so that a long run keeps no more than a short one.
  class Samples {
   public:
    void add(double sample);
    double median() const;
    bool empty() const { return values_.empty(); }

   private:
    std::vector<double> values_;
    std::size_t next_ = 0;
  };
  struct Layer {
    Samples forward, input, weight;
  };
  std::map<LayerId, Layer> layers_;
};

}  // namespace orthant::step
