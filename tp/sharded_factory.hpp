// SPDX-License-Identifier: Apache-2.0
// ShardedFactory: what the model is built from when its matrices are cut over the tp axis. Also the factory of one
// rank: every layer then makes the same moves over a communicator of one.
#pragma once

#include <algorithm>

#include <orthant/core/comm/lane.hpp>
#include <orthant/core/model/declare.hpp>
#include <orthant/core/model/layer_factory.hpp>
#include <orthant/tp/row_exchange.hpp>

namespace orthant::tp {

/// Whether attention can be cut over so many ranks: each has as many query heads as any other, and either key/value
/// heads of its own or one that it shares with as many neighbours as any other.
bool cuts_heads(std::int64_t heads, std::int64_t kv_heads, int degree);

class ShardedFactory final : public model::LayerFactory {
 public:
  /// lane    the tp communicator and the stream that its operations are ordered on; outlives every layer made here.
  /// Throws  ConfigError if heads are not divisible by the lane's size, or it and the number of key/value heads do not
  /// divide one another.
  ShardedFactory(const model::ModelConfig& config, model::Parameters parameters, comm::Lane lane,
                 const TpOptions& options);

  /// column: every part is cut by output features; row: its one part is cut by input features. Of fewer key/value heads
  /// than ranks, neighbours hold the same one, and each has a term of its gradient.
  std::unique_ptr<model::Linear> linear(const model::LinearSpec& spec) override;
  std::unique_ptr<model::Embedding> embedding(UnitId unit, const std::string& name) override;
  std::unique_ptr<model::LossHead> loss_head(UnitId unit, const std::string& name) override;
  shard::Placement whole(shard::Shape shape) const override {
    return shard::replicate(std::move(shape), exchange_.rank(), exchange_.size());
  }
  std::int64_t heads_here(std::int64_t heads) const override {
    return std::max<std::int64_t>(heads / exchange_.size(), 1);
  }
  int sequence_shards() const override { return exchange_.sequence_shards(); }
  int sequence_shard() const override { return exchange_.sequence_shards() > 1 ? exchange_.rank() : 0; }

 private:
  shard::Placement cut(shard::Shape shape, int dim) const;

  model::ModelConfig config_;
  model::Parameters parameters_;
  RowExchange exchange_;
};

}  // namespace orthant::tp
