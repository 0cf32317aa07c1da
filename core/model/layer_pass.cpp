// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/layer_pass.hpp>

#include <chrono>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <orthant/core/base/philox.hpp>

namespace orthant::model {

std::uint64_t DropoutSource::key(LayerId layer, int place) const {
  const auto random =
      philox(static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(2 * layer.value + place), seed);
  return std::uint64_t{random[0]} << 32 | random[1];
}

void LayerPass::weight_gradient(std::function<void(LayerPass&)> gradient) {
  if (split) {
    deferred.push_back(std::move(gradient));
    return;
  }
  const at::NoGradGuard no_graph;
  const auto begin = std::chrono::steady_clock::now();
  gradient(*this);
  weight_us += std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

void LayerPass::make_again() {
  const at::NoGradGuard no_graph;
  for (auto& part : std::exchange(recompute, {})) {
    part(*this);
    part = nullptr;  // with what it was made from
  }
}

void LayerPass::run_deferred() {
  const at::NoGradGuard no_graph;
  for (auto& gradient : deferred) gradient(*this);
  deferred.clear();
}

void Declaration::compute(double cost_us) {
  segments.push_back({.kind = stream::Segment::Kind::compute, .cost_us = cost_us});
}

int Declaration::post(std::string name, stream::StreamId stream, double cost_us) {
  const int index = static_cast<int>(nested.size());
  nested.push_back({std::move(name), stream});
  segments.push_back({.kind = stream::Segment::Kind::post, .cost_us = cost_us, .nested = index});
  return index;
}

void Declaration::wait(int index) { segments.push_back({.kind = stream::Segment::Kind::wait, .nested = index}); }

}  // namespace orthant::model
