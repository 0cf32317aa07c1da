// SPDX-License-Identifier: Apache-2.0
#include <orthant/tp/sharded_factory.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <orthant/core/base/error.hpp>
#include <orthant/tp/chunked_loss_head.hpp>
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

}  // namespace

bool cuts_heads(std::int64_t heads, std::int64_t kv_heads, int degree) {
  return heads % degree == 0 && (kv_heads % degree == 0 || degree % kv_heads == 0);
}

ShardedFactory::ShardedFactory(const model::ModelConfig& config, model::Parameters parameters, comm::Lane lane,
                               const TpOptions& options)
    : config_(config), parameters_(parameters), exchange_(lane, options) {
  if (!cuts_heads(config.heads, config.kv_heads, exchange_.size())) {
    std::vector<std::int64_t> legal;
    for (int degree = 1; degree <= config.heads; ++degree) {
      if (cuts_heads(config.heads, config.kv_heads, degree)) legal.push_back(degree);
    }
    throw ConfigError(fmt::format("{} heads and {} key/value heads cannot be cut over tp = {}; use tp in {{{}}}",
                                  config.heads, config.kv_heads, exchange_.size(), fmt::join(legal, ", ")));
  }
}

shard::Placement ShardedFactory::cut(shard::Shape shape, int dim) const {
  return shard::shard(std::move(shape), dim, exchange_.rank(), exchange_.size());
}

std::unique_ptr<model::Linear> ShardedFactory::linear(const model::LinearSpec& spec) {
  const bool column = spec.role == model::LinearRole::column;
  std::vector<shard::ParameterTable::Part> parts;
  for (const auto& part : spec.parts) {
    const shard::Shape shape{part.out, spec.in};
    const auto placement = part.pieces > 0
                               ? shard::shard_pieces(shape, 0, part.pieces, exchange_.rank(), exchange_.size())
                               : cut(shape, column ? 0 : 1);
    parts.push_back({.name = part.name, .placement = placement, .partial = placement.copies > 1});
  }
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
  if (config_.loss_rows > 0) {
    return std::make_unique<ChunkedLossHead>(
        part, exchange_, ChunkedLossOptions{.rows = config_.loss_rows, .z_loss = config_.z_loss}, short_name(name));
  }
  return std::make_unique<VocabParallelLossHead>(part, exchange_, config_.z_loss, short_name(name));
}

}  // namespace orthant::tp
