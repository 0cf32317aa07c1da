// SPDX-License-Identifier: Apache-2.0
// The autograd nodes round one call of a unit. In backward, in this order and by dependency, not by priority:
//
//   Opening  on the outputs: nothing of the unit runs before it
//   Narrow   one a parameter: receives its gradient and passes nothing on, so no .grad comes to be
//   Gate     on the inputs: waits for the unit's whole graph and for every Narrow; nothing before the unit runs earlier
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace orthant::fsdp {

using Tensors = std::vector<at::Tensor>;

/// Called on the thread that runs backward, gradients not recorded.
struct UnitHooks {
  std::function<void()> open;
  /// index into the parameters; the sum over all its uses in this call.
  std::function<void(int index, const at::Tensor& gradient)> gradient;
  std::function<void()> close;
};

class UnitGraph {
 public:
  /// previous  the call before it in this pass, or null: its Opening then waits for this Gate even where no tensor
  ///           connects them.
  UnitGraph(UnitHooks hooks, const Tensors& inputs, const UnitGraph* previous);

  /// Same data; those that require grad pass through the gate, others (a mask) are the inputs themselves.
  const Tensors& inputs() const { return inputs_; }
  /// Gives each parameter the edge to its Narrow; parameters are tensors that require grad.
  void narrow(const Tensors& parameters);
  /// Makes the outputs the unit's; call it last. From here on this holds the graph, as the outputs do. False when none
  /// of them requires grad: no backward will come.
  bool close(Tensors& outputs);

 private:
  class Gate;
  class Narrow;
  class Opening;
  std::shared_ptr<const UnitHooks> hooks_;
  std::shared_ptr<Gate> gate_;
  std::shared_ptr<Opening> opening_;
  Tensors inputs_;
};

/// What the parameters' edges point to outside of forward: whoever used one there learns it in backward.
class OutsideUse {
 public:
  void mark(const Tensors& parameters);

 private:
  class Refusal;
};

}  // namespace orthant::fsdp
