// SPDX-License-Identifier: Apache-2.0
// ShardedFactory: what the model is built from when its matrices are cut over the tp axis. Also the factory of one
// rank: every layer then makes the same moves over a communicator of one.
#pragma once

#include <orthant/core/comm/lane.hpp>
#include <orthant/core/model/declare.hpp>
#include <orthant/core/model/layer_factory.hpp>
#include <orthant/tp/row_exchange.hpp>

namespace orthant::tp {

class ShardedFactory final : public model::LayerFactory {
 public:
  /// lane    the tp communicator and the stream that its operations are ordered on; outlives every layer made here.
  /// Throws  ConfigError if heads or key/value heads are not divisible by the lane's size.
  ShardedFactory(const model::ModelConfig& config, model::Parameters parameters, comm::Lane lane,
                 const TpOptions& options);

  /// column: every part is cut by output features; row: its one part is cut by input features.
  std::unique_ptr<model::Linear> linear(const model::LinearSpec& spec) override;
  std::unique_ptr<model::Embedding> embedding(UnitId unit, const std::string& name) override;
  std::unique_ptr<model::LossHead> loss_head(UnitId unit, const std::string& name) override;
  int sequence_shards() const override { return exchange_.sequence_shards(); }

 private:
  shard::Placement cut(shard::Shape shape, int dim) const;

  model::ModelConfig config_;
  model::Parameters parameters_;
  RowExchange exchange_;
};

}  // namespace orthant::tp
