// SPDX-License-Identifier: Apache-2.0
// From a list of torch::nn::Modules to the table of parameters: one flat unit a module, one region a parameter.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <orthant/core/model/parameter.hpp>
#include <orthant/core/shard/parameter_table.hpp>

namespace torch::nn {
class Module;
}

namespace orthant::fsdp {

struct ModuleUnit {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  /// Residency::layer: blocks take turns in the shared buffers; an embedding or a head, which may be far larger, has
  /// its own.
  shard::UnitKind kind = shard::UnitKind::block;
  bool decays = true;  ///< weight decay applies, to every parameter of the unit
};

/// A module's parameter and its place in the flat unit.
struct BoundParameter {
  std::string name;  ///< "block0.up.weight"
  at::Tensor own;    ///< the module's tensor; all members that share it follow
  model::Parameter* flat = nullptr;

  /// The shape of the module's tensor on a flat view (the table knows one and two dims only).
  at::Tensor shaped(const at::Tensor& view) const { return view.view(own.sizes()); }
};

struct DeclaredUnit {
  std::string name;
  const torch::nn::Module* module = nullptr;
  UnitId id;
  std::vector<BoundParameter> parameters;  ///< each once, in the module's order
};

/// Adds a unit for each module to the table, and its parameters to the store. Unit i has UnitId{i}. A parameter that
/// is registered twice in one module is one; those that do not require grad stay in the module, whole on every rank.
/// Throws  ConfigError when two units hold one parameter, when a unit has nothing to train, or when a parameter is no
///         leaf.
std::vector<DeclaredUnit> declare(const std::vector<ModuleUnit>& units, shard::ParameterTable& table,
                                  model::ParameterStore& store);

}  // namespace orthant::fsdp
