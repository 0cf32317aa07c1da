// SPDX-License-Identifier: Apache-2.0
#include <orthant/fsdp/modules/module_unit.hpp>

#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <torch/nn/module.h>

#include <orthant/core/base/error.hpp>

namespace orthant::fsdp {
namespace {

shard::Shape table_shape(const at::Tensor& parameter) {
  if (parameter.dim() == 1 || parameter.dim() == 2) return parameter.sizes().vec();
  return {parameter.numel()};
}

struct Owner {
  int unit = 0;
  std::string parameter;
};

}  // namespace

std::vector<DeclaredUnit> declare(const std::vector<ModuleUnit>& units, shard::ParameterTable& table,
                                  model::ParameterStore& store) {
  std::vector<DeclaredUnit> declared;
  std::unordered_map<const void*, Owner> owners;
  for (const ModuleUnit& unit : units) {
    const int index = static_cast<int>(declared.size());
    DeclaredUnit result{.name = unit.name, .module = unit.module.get(), .id = UnitId{index}, .parameters = {}};
    table.add_unit({.id = result.id, .name = unit.name, .kind = unit.kind, .decays = unit.decays});
    for (const auto& item : unit.module->named_parameters()) {
      const at::Tensor& own = item.value();
      if (!own.defined() || !own.requires_grad()) continue;
      const std::string name = unit.name + "." + item.key();
      const auto [owner, is_new] = owners.try_emplace(own.unsafeGetTensorImpl(), Owner{index, name});
      if (!is_new) {
        if (owner->second.unit == index) continue;
        throw ConfigError(fmt::format(
            "'{}' is the same parameter as '{}': a parameter belongs to one unit; put both modules into one unit", name,
            owner->second.parameter));
      }
      if (!own.is_leaf()) {
        throw ConfigError(fmt::format("'{}' has a history (is it in another ShardedModules?); wanted a leaf", name));
      }
      const auto region =
          table.add_region(result.id, {{.name = name, .placement = shard::replicate(table_shape(own))}});
      result.parameters.push_back({.name = name, .own = own, .flat = &store.add(result.id, region)});
    }
    if (result.parameters.empty()) {
      throw ConfigError(fmt::format(
          "unit '{}' has no parameter that requires grad; leave it out of the list and call it directly", unit.name));
    }
    declared.push_back(std::move(result));
  }
  return declared;
}

}  // namespace orthant::fsdp
