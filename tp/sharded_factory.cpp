// SPDX-License-Identifier: Apache-2.0
#include <orthant/tp/sharded_factory.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <orthant/core/base/error.hpp>
#include <orthant/tp/parallel_linear.hpp>
#include <orthant/tp/vocab_parallel.hpp>

namespace orthant::tp {
namespace {

/// "model.layers.3.self_attn.q_proj.weight" -> "q_proj": the task around it says which layer.
std::string short_name(const std::string& name) {
  const auto end = name.rfind('.');
  const auto dot = name.rfind('.', end - 1);
  return name.substr(dot == std::string::npos ? 0 : dot + 1, end - dot - 1);
}

void require_divisible(const char* what, std::int64_t heads, int degree) {
  if (heads % degree == 0) return;
  std::vector<std::int64_t> divisors;
  for (std::int64_t d = 1; d <= heads; ++d) {
    if (heads % d == 0) divisors.push_back(d);
  }
  throw ConfigError(fmt::format("{} = {} is not divisible by tp = {}; use tp in {{{}}}", what, heads, degree,
                                fmt::join(divisors, ", ")));
}

}  // namespace

ShardedFactory::ShardedFactory(const model::ModelConfig& config, model::Parameters parameters, comm::Lane lane,
                               const TpOptions& options)
    : config_(config), parameters_(parameters), exchange_(lane, options) {
  require_divisible("heads", config.heads, exchange_.size());
  require_divisible("kv_heads", config.kv_heads, exchange_.size());
}

shard::Placement ShardedFactory::cut(shard::Shape shape, int dim) const {
  return shard::shard(std::move(shape), dim, exchange_.rank(), exchange_.size());
}

std::unique_ptr<model::Linear> ShardedFactory::linear(const model::LinearSpec& spec) {
  const bool column = spec.role == model::LinearRole::column;
  std::vector<shard::ParameterTable::Part> parts;
  for (const auto& part : spec.parts) parts.push_back({part.name, cut({part.out, spec.in}, column ? 0 : 1)});
  auto& weight = model::declare(parameters_, spec.unit, parts);
  auto what = short_name(spec.parts.front().name);
  if (column) return std::make_unique<ColumnParallel>(weight, exchange_, std::move(what));
  return std::make_unique<RowParallel>(weight, exchange_, std::move(what));
}

std::unique_ptr<model::Embedding> ShardedFactory::embedding(UnitId unit, const std::string& name) {
  const auto placement = cut({config_.vocab, config_.hidden}, 0);
  const VocabShard part{model::declare(parameters_, unit, {{name, placement}}), placement.range.begin};
  return std::make_unique<VocabParallelEmbedding>(part, exchange_, short_name(name));
}

std::unique_ptr<model::LossHead> ShardedFactory::loss_head(UnitId unit, const std::string& name) {
  const auto placement = cut({config_.vocab, config_.hidden}, 0);
  const VocabShard part{model::declare(parameters_, unit, {{name, placement}}), placement.range.begin};
  return std::make_unique<VocabParallelLossHead>(part, exchange_, short_name(name));
}

}  // namespace orthant::tp
