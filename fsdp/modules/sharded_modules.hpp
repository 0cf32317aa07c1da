// SPDX-License-Identifier: Apache-2.0
// ShardedModules: YaFSDP for any list of torch::nn::Modules. Each module is a flat unit of the Engine; its parameters
// are views of the gathered weights, its gradients are written into the gradient buffer by autograd itself, and no
// .grad comes to be. unit_graph.hpp has the nodes that give the order. Source: YaFSDP (GateGradFlow, Narrow).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <orthant/core/optim/optimizer.hpp>
#include <orthant/fsdp/engine.hpp>
#include <orthant/fsdp/modules/host_stream.hpp>
#include <orthant/fsdp/modules/module_unit.hpp>
#include <orthant/fsdp/modules/unit_graph.hpp>

namespace orthant::fsdp {

/// What happened to a unit, for logs and tests.
struct UnitEvent {
  enum class Kind : std::uint8_t {
    forward,   ///< begins; its weights are whole
    backward,  ///< begins; its weights are whole
    gradient,  ///< one parameter's gradient was written
    gate,      ///< backward has ended: all gradients of this call are written
  };
  Kind kind = Kind::forward;
  int unit = 0;
  int parameter = -1;  ///< gradient
  int written = 0;     ///< gate: gradients that this call's backward wrote
};

struct ModulesOptions {
  Options engine = {};
  optim::OptimizerOptions optimizer = {};
  double grad_clip = 0;  ///< of the norm over all parameters; 0: off
  /// Backward passes of a step. Each unit is called once in each; what calls a module twice does so within one run().
  /// Where gradients stay (Residency::chunk), a unit's reduction waits for its last gate.
  int microbatches = 1;
  std::function<void(const UnitEvent&)> observer = {};
};

struct StepOptions {
  double divide_by = 1;  ///< the summed gradient, once: valid tokens or samples of all ranks, or the number of ranks
  double lr = 1e-3;
};

struct StepReport {
  double grad_norm = 0;  ///< after the division, before clipping; the same on all ranks
  bool clipped = false;
};

class ShardedModules {
 public:
  /// Moves the parameters' values into shards; their own storage is released. Rank 0's values count.
  /// units  in forward order. Scheduler and lanes outlive this; graphs of forward() must not outlive it.
  /// Collective over the lanes, as are forward, backward and step: all ranks call the same units in the same order.
  /// Throws  what declare() throws, and Engine's constructor; ConfigError for fp64 values in fp32 masters.
  ShardedModules(const std::vector<ModuleUnit>& units, stream::Scheduler& scheduler, Lanes lanes,
                 ModulesOptions options);
  ShardedModules(const ShardedModules&) = delete;
  ShardedModules& operator=(const ShardedModules&) = delete;

  /// The module's forward on those inputs. `module` points to a unit's module (shared_ptr or ModuleHolder).
  template <class Holder, class... Inputs>
  at::Tensor forward(Holder module, const Inputs&... inputs) {
    const auto body = [&]<std::size_t... I>(const Tensors& gated, std::index_sequence<I...>) {
      return Tensors{module->forward(gated[I]...)};
    };
    constexpr auto kAll = std::index_sequence_for<Inputs...>{};
    return run(*module, {inputs...}, [&](const Tensors& gated) { return body(gated, kAll); }).front();
  }

  /// The general form: any number of outputs, any way to compute them. The module's parameters are whole within `body`
  /// and must not be used elsewhere. Under at::NoGradGuard nothing is recorded and no backward awaited.
  /// Autograd's backward() does the rest. It must start from a loss and name no inputs, and may neither be recorded
  /// (create_graph) nor run a forward again (activation checkpointing).
  /// Throws  InternalError when the module is no unit, or is called while a backward is unfinished.
  Tensors run(const torch::nn::Module& module, const Tensors& inputs,
              const std::function<Tensors(const Tensors&)>& body);

  /// Reduces what is left, divides, clips, and steps the optimizer on this rank's shards. A parameter without gradient
  /// counts as one whose gradient is zero: the optimizer steps it, decay included.
  /// Throws  InternalError when the backward of a forward is missing; NonFiniteError, on all ranks and before any
  ///         weight changes, when the norm is not finite.
  StepReport step(const StepOptions& options);

  /// This rank's slices; gradients as reduced, before division. Valid to read after step().
  std::vector<optim::ShardState>& shards() { return engine_->shards(); }
  const shard::ParameterTable& table() const { return table_; }
  const std::vector<DeclaredUnit>& units() const { return declared_; }
  /// Parameters without gradient when the unit's gate last fired.
  std::vector<std::string> unwritten(int unit) const;

 private:
  struct Call {
    std::int64_t step = 0;
    bool closed = false;
  };
  struct Progress {  ///< of a unit, in this step
    int open = 0;    ///< forwards whose backward is not done
    int closed = 0;  ///< gates that fired
    bool unreduced = false;
    std::vector<bool> written = {};  ///< by the last backward
  };
  struct Recorded {
    int unit = 0;
    std::shared_ptr<const Call> call;
    UnitGraph graph;
  };
  struct Backward {
    int unit = 0;
    HostStream::Occupation occupation;
  };

  int index_of(const torch::nn::Module& module) const;
  Tensors tensors(int unit) const;
  void fill(const shard::FlatUnit& unit, std::int64_t begin, at::Tensor master);
  stream::Claim gather(int unit);
  void prefetch(int unit);
  void drop_prefetched();
  UnitHooks hooks(int unit, const std::shared_ptr<Call>& call);
  void open_backward(int unit, const Call& call);
  void add_gradient(int unit, int parameter, const at::Tensor& gradient);
  void close_backward(int unit, Call& call);
  HostStream::Occupation contribute(int unit, const std::string& name, std::vector<stream::Claim> reads);
  void reduce(int unit, bool last);
  void reduce_rest();
  double gradient_norm();
  void observe(const UnitEvent& event) const;

  ModulesOptions options_;
  stream::Scheduler& scheduler_;
  Lanes lanes_;
  shard::ParameterTable table_;
  model::ParameterStore store_;
  std::vector<DeclaredUnit> declared_;
  std::vector<Progress> progress_;
  HostStream host_;
  OutsideUse outside_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  stream::BufferId norm_buffer_;
  double norm_ = 0;  ///< sum of squares, this rank's, then all ranks'

  std::optional<Backward> backward_;  ///< of the one unit whose backward runs
  std::optional<int> prefetched_;     ///< gathered and not used yet
  std::optional<Recorded> previous_;  ///< the last forward, while this pass goes on
  std::int64_t steps_ = 0;
};

}  // namespace orthant::fsdp
