// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/step/cost_recorder.hpp>

#include <algorithm>

namespace orthant::step {
namespace {

constexpr std::size_t kKept = 256;

}  // namespace

void CostRecorder::Samples::add(double sample) {
  if (values_.size() < kKept) {
    values_.push_back(sample);
  } else {
    values_[next_++ % kKept] = sample;
  }
}

double CostRecorder::Samples::median() const {
  if (values_.empty()) return 0;
  auto sorted = values_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

void CostRecorder::add(LayerId layer, Phase phase, double total_us, double weight_us) {
  Layer& samples = layers_[layer];
  switch (phase) {
    case Phase::forward:
      return samples.forward.add(total_us);
    case Phase::backward_input:
      return samples.input.add(total_us);
    case Phase::backward_weight:
      return samples.weight.add(total_us);
    case Phase::backward:
      samples.input.add(total_us - weight_us);
      samples.weight.add(weight_us);
  }
}

std::map<LayerId, LayerCost> CostRecorder::medians() const {
  std::map<LayerId, LayerCost> result;
  for (const auto& [layer, samples] : layers_) {
    if (samples.input.empty() || samples.weight.empty()) continue;
    result[layer] = {samples.forward.median(), samples.input.median(), samples.weight.median()};
  }
  return result;
}

}  // namespace orthant::step
