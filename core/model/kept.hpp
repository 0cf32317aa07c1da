// SPDX-License-Identifier: Apache-2.0
// References in an autograd context, as addresses: what they name (layers, parameters, passes) outlives the graph,
// since the stage's program owns both.
#pragma once

#include <cstdint>

#include <torch/csrc/autograd/custom_function.h>

namespace orthant::model {

template <class T>
c10::IValue keep(T& object) {
  return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(&object));
}

template <class T>
T& kept(torch::autograd::AutogradContext* ctx, const char* key) {
  return *reinterpret_cast<T*>(static_cast<std::intptr_t>(ctx->saved_data.at(key).toInt()));
}

}  // namespace orthant::model
