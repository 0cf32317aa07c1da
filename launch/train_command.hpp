// SPDX-License-Identifier: Apache-2.0
// orthant train: one rank of a run, from its arguments to its exit code.
#pragma once

#include <string>
#include <vector>

namespace orthant::launch {

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;  ///< "key.path=value"
  std::string load_weights;            ///< safetensors; empty: initial weights from the seed
  std::string save_gradients;  ///< safetensors; empty: none. Gradients of step 1 before clipping, to compare meshes
  std::string save_weights;    ///< safetensors; empty: final weights are not written
};

/// Collective over all ranks that the launcher started. Prints one message for the whole run where it can, and ends all
/// ranks when one fails. Returns the exit code (README.md, "Exit codes").
int train_command(const TrainArguments& arguments);

}  // namespace orthant::launch
