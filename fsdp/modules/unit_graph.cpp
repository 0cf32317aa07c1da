// SPDX-License-Identifier: Apache-2.0
#include <orthant/fsdp/modules/unit_graph.hpp>

#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <orthant/core/base/error.hpp>

namespace orthant::fsdp {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

template <class T, class... Args>
std::shared_ptr<T> make_node(Args&&... args) {
  return {new T(std::forward<Args>(args)...),
          torch::autograd::deleteNode};  // long chains are deleted without recursion
}

/// An input (of backward) that never carries a gradient: only its place in the order counts.
std::uint32_t add_order_input(Node& node) { return node.add_input_metadata(Node::undefined_input()); }

}  // namespace

class UnitGraph::Opening final : public Node {
 public:
  explicit Opening(std::shared_ptr<const UnitHooks> hooks) : hooks_(std::move(hooks)) { add_order_input(*this); }
  variable_list apply(variable_list&& grads) override {
    const at::NoGradGuard no_grad;
    hooks_->open();
    grads.erase(grads.begin());
    return std::move(grads);
  }

 private:
  std::shared_ptr<const UnitHooks> hooks_;
};

class UnitGraph::Narrow final : public Node {
 public:
  Narrow(std::shared_ptr<const UnitHooks> hooks, int index, const std::shared_ptr<Gate>& gate);
  variable_list apply(variable_list&& grads) override {
    const at::NoGradGuard no_grad;
    if (grads[0].defined()) hooks_->gradient(index_, grads[0]);
    return {at::Tensor()};
  }

 private:
  std::shared_ptr<const UnitHooks> hooks_;
  int index_;
};

class UnitGraph::Gate final : public Node {
 public:
  explicit Gate(std::shared_ptr<const UnitHooks> hooks) : hooks_(std::move(hooks)) { add_order_input(*this); }
  variable_list apply(variable_list&& grads) override {
    const at::NoGradGuard no_grad;
    hooks_->close();
    grads.erase(grads.begin());
    grads.resize(num_outputs());  // the edge to the previous unit, if any, carries nothing
    return std::move(grads);
  }

 private:
  std::shared_ptr<const UnitHooks> hooks_;
};

UnitGraph::Narrow::Narrow(std::shared_ptr<const UnitHooks> hooks, int index, const std::shared_ptr<Gate>& gate)
    : hooks_(std::move(hooks)), index_(index) {
  add_next_edge({gate, 0});
}

UnitGraph::UnitGraph(UnitHooks hooks, const Tensors& inputs, const UnitGraph* previous)
    : hooks_(std::make_shared<const UnitHooks>(std::move(hooks))), gate_(make_node<Gate>(hooks_)), inputs_(inputs) {
  for (at::Tensor& input : inputs_) {
    if (!input.defined() || !input.requires_grad()) continue;
    gate_->add_next_edge(torch::autograd::impl::gradient_edge(input));
    input = input.detach();
    torch::autograd::set_history(input, gate_);
  }
  if (previous != nullptr && previous->opening_) gate_->add_next_edge({previous->opening_, 0});
}

void UnitGraph::narrow(const Tensors& parameters) {
  for (int i = 0; i < static_cast<int>(parameters.size()); ++i) {
    torch::autograd::set_history(parameters[i], make_node<Narrow>(hooks_, i, gate_));
  }
}

bool UnitGraph::close(Tensors& outputs) {
  const auto opening = make_node<Opening>(hooks_);
  for (at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    opening->add_next_edge(torch::autograd::impl::gradient_edge(output));
    output = output.detach();
    torch::autograd::set_history(output, opening);
  }
  gate_.reset();
  inputs_.clear();
  if (opening->num_outputs() > 0) opening_ = opening;
  return opening_ != nullptr;
}

class OutsideUse::Refusal final : public Node {
 public:
  variable_list apply(variable_list&&) override {
    throw InternalError(
        "a parameter was used outside of its unit's forward, where its weights need not be there; "
        "use it within ShardedModules::forward()");
  }
};

void OutsideUse::mark(const Tensors& parameters) {
  for (const at::Tensor& parameter : parameters) torch::autograd::set_history(parameter, make_node<Refusal>());
}

}  // namespace orthant::fsdp
